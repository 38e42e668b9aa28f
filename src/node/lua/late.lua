-- Deadline of a batch: if it has passed (batch.lua), only the ops
-- that undo, release and unclaim, still run.
-- KEYS, ARGV  not read
-- Puts        per op: LATE
if b.late and not find('DQMGBu', kind, 1, true) then
  for _ = 1, count or 1 do put(LATE) end
  return
end
