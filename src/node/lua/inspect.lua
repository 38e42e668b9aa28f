-- Read the holder.
-- KEYS  1 lock   2 fence   3 meta   4 queue
-- ARGV  1 wait: 0 or 1
-- Puts  fence, value, ms, meta | ABSENT      value false: a stranger's type; ms -1: no expiry
local function inspect(k, a)
  local value = try('GET', KEYS[k + 1])
  if ARGV[a + 1] == '1' then wait_for_hint(KEYS[k + 4], 10000) end
  if not value then return put(ABSENT) end
  local meta = try('GET', KEYS[k + 3])
  put(stored(KEYS[k + 2]) or 0)
  put(type(value) == 'string' and value)
  put(call('PTTL', KEYS[k + 1]))
  put(type(meta) == 'string' and meta)
end
