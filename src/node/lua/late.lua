-- Refuses the ops of a batch whose deadline has passed (`b.late`, batch.lua). Only releases and
-- unclaim still run, because they only give back what an earlier op has taken. On a server whose
-- memory is full, refuses acquires (claim.lua does so with claims), whatever else the batch has.
-- KEYS, ARGV  not read
-- Puts        per op: LATE or FULL
if b.late and not find('DQMGFu', kind, 1, true) then
  for _ = 1, count or 1 do put(LATE) end
  return
end
if b.full and find('AVWOTSPN', kind, 1, true) then
  for _ = 1, count or 1 do put(FULL) end
  return
end
