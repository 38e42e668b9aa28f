-- Reads the owners of locks. Changes nothing.
-- KEYS  per name: 1 lock   2 fence   3 meta
-- ARGV  none
-- Returns  for each name: the owner's token, the fence, ms until the lease ends, the holder's
--          metadata or an empty text; an empty list for a name that no owner token of palisade
--          holds
local out = {}
for i = 1, #KEYS, 3 do
  local n = #out + 1
  out[n] = {}
  local owner = redis.pcall('GETRANGE', KEYS[i], 0, 22)
  local left = redis.call('PTTL', KEYS[i])
  local fence = redis.pcall('GET', KEYS[i + 1])
  if type(owner) == 'string' and #owner == 22 and left > 0 and type(fence) == 'string' then
    local meta = redis.pcall('GETRANGE', KEYS[i + 2], 0, 4096)
    out[n] = {owner, fence, left, type(meta) == 'string' and #meta <= 4096 and meta or ''}
  end
end
return out
