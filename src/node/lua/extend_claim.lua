-- Prolong a claim's lease; in quarantine only for a holder that names it. A promise of an earlier
-- life stays below the floor (g is not renewed: a higher promise may have been forgotten) unless
-- its holder names this quarantine.
-- KEYS  1 record
-- ARGV  1 owner  2 ballot  3 lease ms  4 retention ms  5 fingerprint or ''
--       6 name of the quarantine or ''
-- Puts  DONE | NOT_OWNER | QUARANTINED | WRONG_TYPE | MISMATCH | COMPLETED, rf, value | DEFERRED
local function extend_claim(k, a)
  local key, named = KEYS[k + 1], ARGV[a + 6]
  local h = record(key)
  if not h then return end
  if is_anothers(h, ARGV[a + 5]) then return put(MISMATCH) end
  if h[5] then return put_completed(h, shown(key)) end
  local fence, ballot = tonumber(h[2]) or 0, tonumber(ARGV[a + 2])
  if fence > ballot or (fence == ballot and h[1] ~= ARGV[a + 1]) then return put(NOT_OWNER) end
  if not may_extend(named) then return put(QUARANTINED) end
  local g = h[6] or '-'
  if since == 0 or named == id then g = id end
  call('HSET', key, 'own', ARGV[a + 1], 'fence', ARGV[a + 2], 'till',
    digits(now_ms + tonumber(ARGV[a + 3])), 'att', math.max(tonumber(h[4]) or 0, 1), 'g', g)
  know(key, h, ARGV[a + 5])
  keep(key, ARGV[a + 4])
  put(DONE)
end
