-- Read a record.
-- KEYS  1 record
-- ARGV  1 fingerprint or ''
-- Puts  fence, attempt, lease ms or -1, rf or 0, value or false if rf > 0 | ABSENT | WRONG_TYPE
--       | MISMATCH | DEFERRED
local function lookup(k, a)
  local h = record(KEYS[k + 1])
  if not h then return end
  if not h[2] then return put(ABSENT) end
  if is_anothers(h, ARGV[a + 1]) then return put(MISMATCH) end
  local value = h[5] and shown(KEYS[k + 1])
  if value == nil then return end
  local rest = (tonumber(h[3]) or 0) - now_ms
  put(tonumber(h[2]))
  put(tonumber(h[4]) or 0)
  put(rest > 0 and rest or -1)
  put(tonumber(h[5]) or 0)
  if h[5] then put(value) end
end
