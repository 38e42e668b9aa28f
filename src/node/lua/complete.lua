-- Store the result, unless a higher ballot was promised or another request's fingerprint is here.
-- KEYS  1 record
-- ARGV  1 owner  2 ballot  3 value  4 retention ms  5 fingerprint or ''
--       6 value kept: 0 (only the fact is) or 1
-- Puts  DONE | NOT_OWNER | WRONG_TYPE | MISMATCH
if kind == 'c' then
  if is_anothers(ARGV[a + 5]) then return put(MISMATCH) end
  local ballot = tonumber(ARGV[a + 2])
  -- The ballot below which nothing is accepted. A promise of an earlier history may have been
  -- lost with newer ones, which were all below the floor.
  local promised = b.floor > fence and h[6] ~= b.id and b.floor or fence
  if promised > ballot or (promised == ballot and h[1] ~= ARGV[a + 1]) then
    return put(NOT_OWNER)
  end
  call('HSET', key, 'own', ARGV[a + 1], 'fence', ARGV[a + 2], 'till', '0', 'att',
    math.max(attempt, 1), 'g', b.id, 'rf', ARGV[a + 2])
  if ARGV[a + 6] == '1' then
    call('HSET', key, 'val', ARGV[a + 3])
  elseif rf then
    call('HDEL', key, 'val')
  end
  know(ARGV[a + 5])
  keep(ARGV[a + 4])
  return put(DONE)
end
