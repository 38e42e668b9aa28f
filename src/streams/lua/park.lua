-- Puts a message with the dead letters and acknowledges it, in one step.
-- KEYS: the stream, the stream of dead letters. ARGV: group, id, then the dead letter's fields.
-- Returns 1, or 0 if the message was acknowledged already: then there is no second dead letter.
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then
  return 0
end
local letter = {}
for i = 3, #ARGV do
  letter[#letter + 1] = ARGV[i]
end
redis.call('XADD', KEYS[2], '*', unpack(letter))
return 1
