-- Store the result, unless a higher ballot was promised or another request's fingerprint is here.
-- KEYS  1 record
-- ARGV  1 owner  2 ballot  3 value  4 retention ms  5 fingerprint or ''
--       6 value kept: 0 (only the fact is) or 1
-- Puts  DONE | NOT_OWNER | WRONG_TYPE | MISMATCH
local function complete(k, a)
  local key = KEYS[k + 1]
  local h = record(key)
  if not h then return end
  if is_anothers(h, ARGV[a + 5]) then return put(MISMATCH) end
  local fence, ballot = promised(h), tonumber(ARGV[a + 2])
  if fence > ballot or (fence == ballot and h[1] ~= ARGV[a + 1]) then return put(NOT_OWNER) end
  call('HSET', key, 'own', ARGV[a + 1], 'fence', ARGV[a + 2], 'till', '0', 'att',
    math.max(tonumber(h[4]) or 0, 1), 'g', id, 'rf', ARGV[a + 2])
  if ARGV[a + 6] == '1' then
    call('HSET', key, 'val', ARGV[a + 3])
  elseif h[5] then
    call('HDEL', key, 'val')
  end
  know(key, h, ARGV[a + 5])
  keep(key, ARGV[a + 4])
  put(DONE)
end
