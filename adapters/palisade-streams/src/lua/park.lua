-- Adds a dead letter and acknowledges its entry, in one step.
-- KEYS: the stream, the stream of dead letters. ARGV: group, id, then the dead letter's fields.
-- Returns 1. Returns 0 and adds no dead letter if the entry was already acknowledged.
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then
  return 0
end
local letter = {}
for i = 3, #ARGV do
  letter[#letter + 1] = ARGV[i]
end
-- Add the dead letter before the acknowledgement. If XADD fails, the entry is still pending. Redis
-- does not undo earlier writes of a script.
redis.call('XADD', KEYS[2], '*', unpack(letter))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return 1
