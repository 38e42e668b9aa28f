-- Refuses the ops of a batch whose deadline has passed (`b.late`, batch.lua), except releases,
-- which only give back. Where the memory is full, refuses acquires, whatever else the batch has.
-- KEYS, ARGV  not read
-- Puts        per op: LATE or FULL
if b.late and not find('DQMGF', kind, 1, true) then
  for _ = 1, count or 1 do put(LATE) end
  return
end
if b.full and find('AVWOSPN', kind, 1, true) then
  for _ = 1, count or 1 do put(FULL) end
  return
end
