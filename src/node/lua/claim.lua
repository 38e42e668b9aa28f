-- Begin an idempotency record: promise this ballot, and show any result (DESIGN 5.7).
-- KEYS  1 record
-- ARGV  1 owner  2 lease ms  3 retention ms  4 proposal  5 fingerprint or ''  6 force: 0 or 1
-- Puts  fence, attempt, remembers 0 or 1, rf or 0, value if rf > 0
--       | QUARANTINED, epoch | WRONG_TYPE | MISMATCH | COMPLETED, rf, value | IN_FLIGHT, ms
local function put_claimed(h, fence, attempt, retention)
  put(fence)
  put(attempt)
  -- Only time tells: a record that is here may be an old copy of it, without the result it had.
  put((since == 0 or since + tonumber(retention) < now_ms) and 1 or 0)
  put(tonumber(h[5]) or 0)
  if h[5] then put(h[6] or '') end
end

local function claim(k, a)
  if left > 0 then return put_quarantined() end
  local key, owner, fp = KEYS[k + 1], ARGV[a + 1], ARGV[a + 5]
  local h = record(key)
  if not h then return end
  if fp ~= '' and h[8] and h[8] ~= fp then return put(MISMATCH) end
  if h[5] and ARGV[a + 6] ~= '1' then return put_completed(h) end
  local fence, attempt = tonumber(h[2]) or 0, tonumber(h[4]) or 0
  local rest = (tonumber(h[3]) or 0) - now_ms
  if rest > 0 then
    if h[1] == owner then return put_claimed(h, fence, attempt, ARGV[a + 3]) end
    if not h[5] then
      put(IN_FLIGHT)
      return put(rest)
    end
  end
  fence = next_fence(fence, ARGV[a + 4])
  attempt = attempt + 1
  call('HSET', key, 'own', owner, 'fence', digits(fence), 'till',
    digits(now_ms + tonumber(ARGV[a + 2])), 'att', attempt, 'g', digits(since))
  if fp ~= '' and not h[8] then call('HSET', key, 'fp', fp) end
  call('PEXPIRE', key, ARGV[a + 3])
  put_claimed(h, fence, attempt, ARGV[a + 3])
end
