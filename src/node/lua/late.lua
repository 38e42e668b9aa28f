-- Refuses the ops of a batch whose deadline has passed (`b.late`, batch.lua). Only releases and
-- unclaim still run, because they only give back what an earlier op has taken.
-- KEYS, ARGV  not read
-- Puts        per op: LATE
if b.late and not find('DQMGFu', kind, 1, true) then
  for _ = 1, count or 1 do put(LATE) end
  return
end
