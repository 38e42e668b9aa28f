-- Extends a claim's lease; in a quarantine only for a holder that names the quarantine. The field g
-- names the data history in which the ballot was stored. The extension keeps an earlier history in
-- g: the server may have lost a higher ballot of that history, so the floor has to count in place
-- of the ballot (is_overtaken in records.lua). The extension sets g to this history if the holder
-- names this quarantine, or if the server never lost data.
-- KEYS  1 record
-- ARGV  1 owner  2 ballot  3 lease ms  4 ms to keep the record for, the lease included
--       5 fingerprint or ''
--       6 name of the quarantine or ''
-- Puts  DONE | NOT_OWNER | QUARANTINED | WRONG_TYPE | MISMATCH | COMPLETED, rf, value | DEFERRED
if kind == 'x' then
  local ballot, named = tonumber(ARGV[a + 2]), ARGV[a + 6]
  if is_anothers(ARGV[a + 5]) then return put(MISMATCH) end
  if rf then return put_completed(shown()) end
  if fence > ballot or (fence == ballot and h[1] ~= ARGV[a + 1]) then return put(NOT_OWNER) end
  if not may_extend(named) then return put(QUARANTINED) end
  local g = h[6] or '-'
  if b.since == 0 or named == b.id then g = b.id end
  call('HSET', key, 'own', ARGV[a + 1], 'fence', ARGV[a + 2], 'till',
    digits(now_ms + tonumber(ARGV[a + 3])), 'att', math.max(attempt, 1), 'g', g)
  know(ARGV[a + 5])
  keep(ARGV[a + 4])
  return put(DONE)
end
