-- Reads for each lock if its key exists, and which clients wait for the lock. Changes nothing.
-- KEYS  per name: 1 lock   2 queue
-- ARGV  none
-- Returns  for each name two values. The first is the time in ms until the lock's key expires; -1
--          if the key does not expire, -2 if there is no key. The second is the value of the queue
--          (the library's wake.lua describes its form), or an empty text
local out = {}
for i = 1, #KEYS, 2 do
  local queue = read('GETRANGE', KEYS[i + 1], 0, 3120)
  local good = type(queue) == 'string' and #queue <= 3120
  out[#out + 1] = {read('PTTL', KEYS[i]), good and queue or ''}
end
return out
