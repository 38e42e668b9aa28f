-- Reads records of idempotency keys. Changes nothing.
-- KEYS     1 palisade:generation, the marker, then records
-- ARGV     none
-- Returns  the server's run id; ms since its present data history began, -1 if that is unknown;
--          then a list for each record, empty for a key that is no record of palisade. Its values:
--          the number of attempts; ms until the claim's lease ends, or 0; 1 if there is a result,
--          else 0; ms until the record expires; the highest ballot
--          as text; the age of that ballot in ms; 1 if the server stored that ballot in its present
--          data history, else 0
local info = read('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return redis.error_reply('READONLY it is a replica by now')
end
local time = read('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local marker = read('GETRANGE', KEYS[1], '0', '114')
if marker.err then return marker end
local since = tonumber(string.sub(marker, 103, 115))
local id = since and string.sub(marker, 4, 19) .. ':' .. string.format('%.0f', since)
local out = {string.match(read('INFO', 'server'), 'run_id:(%x+)') or '',
  since and math.max(now - since, 0) or -1}
for i = 2, #KEYS do
  out[i + 1] = {}
  local h = read('HMGET', KEYS[i], 'till', 'att', 'rf', 'fence', 'g')
  local fence = not h.err and tonumber(h[4])
  -- A ballot has at most 20 digits. A longer value, of another program, would make the answer too
  -- large to read.
  if fence and #h[4] <= 20 and h[2] then
    local left = math.max((tonumber(h[1]) or 0) - now, 0)
    local ago = math.max(math.floor((now_us - fence) / 1000), 0)
    out[i + 1] = {tonumber(h[2]) or 0, left, tonumber(h[3]) and 1 or 0,
      math.max(read('PTTL', KEYS[i]), 0), h[4], ago, h[5] == id and 1 or 0}
  end
end
return out
