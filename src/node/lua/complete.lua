-- Store the result, unless a higher ballot was promised.
-- KEYS  1 record
-- ARGV  1 owner  2 ballot  3 value  4 retention ms
-- Puts  DONE | NOT_OWNER | WRONG_TYPE
local function complete(k, a)
  local h = record(KEYS[k + 1])
  if not h then return end
  local fence, ballot = promised(h), tonumber(ARGV[a + 2])
  if fence > ballot or (fence == ballot and h[1] ~= ARGV[a + 1]) then return put(NOT_OWNER) end
  call('HSET', KEYS[k + 1], 'own', ARGV[a + 1], 'fence', ARGV[a + 2], 'till', '0', 'att',
    h[4] or '1', 'g', digits(since), 'rf', ARGV[a + 2], 'val', ARGV[a + 3])
  call('PEXPIRE', KEYS[k + 1], ARGV[a + 4])
  put(DONE)
end
