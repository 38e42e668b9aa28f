-- Reads which locks are there, and who waits for them. Changes nothing.
-- KEYS  per name: 1 lock   2 queue
-- ARGV  none
-- Returns  for each name: ms until the lock's key ends (-1 without an end, -2 without a key), and
--          the value of its queue (its form is in the library's wake.lua) or an empty text
local out = {}
for i = 1, #KEYS, 2 do
  local queue = redis.pcall('GETRANGE', KEYS[i + 1], 0, 3120)
  local good = type(queue) == 'string' and #queue <= 3120
  out[#out + 1] = {redis.call('PTTL', KEYS[i]), good and queue or ''}
end
return out
