-- Reads records of idempotency keys. Changes nothing.
-- KEYS  records
-- ARGV  none
-- Returns  for each key: attempts, ms until its lease ends or 0, 1 if there is a result else 0, ms
--          until the record expires; an empty list for what is no record
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local out = {}
for i, key in ipairs(KEYS) do
  out[i] = {}
  local h = redis.pcall('HMGET', key, 'till', 'att', 'rf')
  if not h.err and h[2] then
    local left = math.max((tonumber(h[1]) or 0) - now, 0)
    out[i] = {tonumber(h[2]) or 0, left, h[3] and 1 or 0, math.max(redis.call('PTTL', key), 0)}
  end
end
return out
