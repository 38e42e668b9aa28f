-- Stores the result of an idempotency key. Refuses if the record has a higher ballot, or the
-- fingerprint of another request.
-- KEYS  1 record
-- ARGV  1 owner of the claim  2 ballot of the claim  3 value of the result  4 ms for which the
--       record is kept  5 fingerprint of the request, or ''
--       6 1 to keep the value, 0 to keep only the fact that there is a result
-- Puts  DONE | NOT_OWNER: the record has a higher ballot
--       | MISMATCH: the record has another fingerprint
--       | WRONG_TYPE: the key belongs to another program (records.lua puts it)
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
