-- Prolong a claim's lease. A promise of an earlier generation stays below the floor (g is not
-- renewed: a higher promise may have been forgotten) unless its holder names this quarantine. In
-- the failover window the lease must outlast the window, or its holder names the quarantine.
-- KEYS  1 record
-- ARGV  1 owner  2 ballot  3 lease ms  4 retention ms  5 epoch or ''
-- Puts  DONE | NOT_OWNER | QUARANTINED, epoch | WRONG_TYPE | COMPLETED, rf, value
local function extend_claim(k, a)
  local h = record(KEYS[k + 1])
  if not h then return end
  if h[5] then return put_completed(h) end
  local fence, ballot = tonumber(h[2]) or 0, tonumber(ARGV[a + 2])
  if fence > ballot or (fence == ballot and h[1] ~= ARGV[a + 1]) then return put(NOT_OWNER) end
  local same_life = tonumber(h[7]) == since
  if same_life then
    -- A lease that is not this owner's proves nothing about a copy elsewhere.
    local till = h[1] == ARGV[a + 1] and tonumber(h[3]) or 0
    if window > 0 and not may_prolong(till - now_ms, ARGV[a + 5]) then return put_quarantined() end
  elseif not may_recreate(ARGV[a + 5]) then
    return put_quarantined()
  end
  local g = h[7] or '-1'
  if same_life or since == 0 or tonumber(ARGV[a + 5]) == since then g = digits(since) end
  call('HSET', KEYS[k + 1], 'own', ARGV[a + 1], 'fence', ARGV[a + 2], 'till',
    digits(now_ms + tonumber(ARGV[a + 3])), 'att', h[4] or '1', 'g', g)
  call('PEXPIRE', KEYS[k + 1], ARGV[a + 4])
  put(DONE)
end
