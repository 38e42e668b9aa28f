-- Stores the result. Refuses if the record has a higher ballot, or the fingerprint of another
-- request.
-- KEYS  1 record
-- ARGV  1 owner  2 ballot  3 value  4 ms to keep the record for  5 fingerprint or ''
--       6 value kept: 0 (only the fact that there is a result) or 1
-- Puts  DONE | NOT_OWNER | WRONG_TYPE | MISMATCH
if kind == 'c' then
  if is_anothers(ARGV[a + 5]) then return put(MISMATCH) end
  if is_overtaken(tonumber(ARGV[a + 2]), ARGV[a + 1]) then return put(NOT_OWNER) end
  call('HSET', key, 'own', ARGV[a + 1], 'fence', ARGV[a + 2], 'till', '0', 'att',
    math.max(attempt, 1), 'g', b.id, 'rf', ARGV[a + 2])
  if ARGV[a + 6] == '1' then
    call('HSET', key, 'val', ARGV[a + 3])
  elseif h[5] then
    call('HDEL', key, 'val')
  end
  know(ARGV[a + 5])
  keep(ARGV[a + 4])
  wake()
  return put(DONE)
end
