-- Refuses the ops of a batch whose deadline has passed (`b.late`, batch.lua), except releases,
-- which only give back. Where the memory is full, refuses acquires, whatever else the batch has.
-- KEYS, ARGV  not read
-- Puts        per op: LATE or FULL
if b.late and kind ~= 'F' then
  return put(LATE)
end
if b.full and kind == 'P' then
  return put(FULL)
end
