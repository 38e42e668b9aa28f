-- Acknowledges an entry, with or without a dead letter, in one step.
-- KEYS: the stream; for a dead letter also the stream of dead letters. ARGV: group, consumer, id,
-- delivery count, then the dead letter's fields.
-- Returns 1. Returns 0 and changes nothing if the entry is not pending for this consumer, or was
-- delivered again since.
local stream, group, me, id = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local mine = redis.call('XPENDING', stream, group, id, id, 1, me)
if #mine == 0 or mine[1][4] ~= tonumber(ARGV[4]) then
  return 0
end
if KEYS[2] then
  local letter = {}
  for i = 5, #ARGV do
    letter[#letter + 1] = ARGV[i]
  end
  -- Add the dead letter before the acknowledgement. If XADD fails, the entry is still pending.
  -- Redis does not undo earlier writes of a script.
  redis.call('XADD', KEYS[2], '*', unpack(letter))
end
return redis.call('XACK', stream, group, id)
