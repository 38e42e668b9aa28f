-- Reads records of idempotency keys. Changes nothing.
-- KEYS     1 palisade:generation, the marker, then records
-- ARGV     1 number of bytes of a record to read
-- Returns  the server's run id; its clock in us; the marker or an empty text; then two values for
--          each record: its first bytes, or an empty text for a key that has no text; ms until the
--          record expires, -2 without a key
local info = read('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return redis.error_reply('READONLY it is a replica by now')
end
local time, last, marker = read('TIME'), ARGV[1] - 1, read('GETRANGE', KEYS[1], '0', '1000')
local out = {string.match(read('INFO', 'server'), 'run_id:(%x+)') or '',
  time[1] * 1000000 + time[2], type(marker) == 'string' and marker or ''}
for i = 2, #KEYS do
  local text = read('GETRANGE', KEYS[i], '0', last)
  out[#out + 1] = type(text) == 'string' and text or ''
  out[#out + 1] = read('PTTL', KEYS[i])
end
return out
