-- Settle a claim's ballot; shows the result if there is one.
-- KEYS  1 record
-- ARGV  1 owner  2 ballot
-- Puts  DONE | NOT_OWNER | WRONG_TYPE | COMPLETED, rf, value
local function raise_claim(k, a)
  local h = record(KEYS[k + 1])
  if not h then return end
  if h[1] ~= ARGV[a + 1] or promised(h) > tonumber(ARGV[a + 2]) then return put(NOT_OWNER) end
  call('HSET', KEYS[k + 1], 'fence', ARGV[a + 2], 'g', digits(since))
  if h[5] then return put_completed(h) end
  put(DONE)
end
