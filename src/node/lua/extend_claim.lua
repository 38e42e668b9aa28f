-- Extends a claim's lease; in a quarantine only for a holder that names it. The field g names the
-- data history in which the ballot was stored. If that is an earlier one, a higher ballot of it may
-- be lost, so the floor counts in place of the ballot (is_overtaken in records.lua). So an
-- extension sets g to the present history only if the holder names this quarantine, or if the
-- server never lost data.
-- KEYS  1 record
-- ARGV  1 owner of the claim  2 ballot of the claim  3 lease ms  4 ms for which the record is kept,
--       the lease included  5 fingerprint of the request, or ''
--       6 name of the quarantine in which the holder may extend, or ''
-- Puts  DONE | NOT_OWNER: the record has a later claim
--       | QUARANTINED: a quarantine runs, and argument 6
--         does not name it
--       | MISMATCH: the record has another fingerprint
--       | COMPLETED, ballot of the result, value or false (only the fact is kept)
--       | WRONG_TYPE: the key belongs to another program (records.lua puts it)
--       | DEFERRED: the answer is full, so nothing was done
if kind == 'x' then
  local ballot, named = tonumber(ARGV[a + 2]), ARGV[a + 6]
  if is_anothers(ARGV[a + 5]) then return put(MISMATCH) end
  if rf then return put_completed(shown()) end
  if fence > ballot or (fence == ballot and h[1] ~= ARGV[a + 1]) then return put(NOT_OWNER) end
  if not may_extend(named) then return put(QUARANTINED) end
  local g = h[6] or '-'
  if b.never_lost or named == b.id then g = b.id end
  call('HSET', key, 'own', ARGV[a + 1], 'fence', ARGV[a + 2], 'till',
    digits(now_ms + tonumber(ARGV[a + 3])), 'att', math.max(attempt, 1), 'g', g)
  know(ARGV[a + 5])
  keep(ARGV[a + 4])
  return put(DONE)
end
