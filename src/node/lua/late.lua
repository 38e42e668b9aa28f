-- Deadline of a batch. After the deadline (`b.late`, batch.lua), only release and unclaim still
-- run.
-- KEYS, ARGV  not read
-- Puts        per op: LATE
if b.late and not find('DQMGFu', kind, 1, true) then
  for _ = 1, count or 1 do put(LATE) end
  return
end
