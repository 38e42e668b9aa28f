-- Prolong a claim's lease; in quarantine too, and then without regard to the floor: it is how a
-- claimant that was settled before the failover takes its place again.
-- KEYS  1 record
-- ARGV  1 owner  2 ballot  3 lease ms  4 retention ms
-- Puts  DONE | NOT_OWNER | WRONG_TYPE | COMPLETED, rf, value
local function extend_claim(k, a)
  local h = record(KEYS[k + 1])
  if not h then return end
  if h[5] then return put_completed(h) end
  local fence, ballot = tonumber(h[2]) or 0, tonumber(ARGV[a + 2])
  if fence > ballot or (fence == ballot and h[1] ~= ARGV[a + 1]) then return put(NOT_OWNER) end
  call('HSET', KEYS[k + 1], 'own', ARGV[a + 1], 'fence', ARGV[a + 2], 'till',
    digits(now_ms + tonumber(ARGV[a + 3])), 'att', h[4] or '1', 'g', digits(since))
  call('PEXPIRE', KEYS[k + 1], ARGV[a + 4])
  put(DONE)
end
