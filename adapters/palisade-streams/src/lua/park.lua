-- Puts a message with the dead letters and acknowledges it, in one step.
-- KEYS: the stream, the stream of dead letters. ARGV: group, id, then the dead letter's fields.
-- Returns 1, or 0 if the message was acknowledged already: then there is no second dead letter.
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then
  return 0
end
local letter = {}
for i = 3, #ARGV do
  letter[#letter + 1] = ARGV[i]
end
-- First: if it fails, the message is still pending. Redis does not undo what a script did before.
redis.call('XADD', KEYS[2], '*', unpack(letter))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return 1
