-- Begin an idempotency record: promise this ballot, and show any result.
-- KEYS  1 record
-- ARGV  1 owner  2 lease ms  3 retention ms  4 proposal  5 fingerprint or ''  6 force: 0 or 1
--       7 created: when the request was made, ms or ''
-- Puts  fence, attempt, rf or 0, value or false if rf > 0
--       | QUARANTINED | WRONG_TYPE | MISMATCH | COMPLETED, rf, value or false | IN_FLIGHT, ms
--       | TOO_OLD | DEFERRED

local function put_claimed(h, value, fence, attempt)
  put(fence)
  put(attempt)
  put(tonumber(h[5]) or 0)
  if h[5] then put(value) end
end

local function claim(k, a)
  local key, owner, fp = KEYS[k + 1], ARGV[a + 1], ARGV[a + 5]
  local h = record(key)
  if not h then return end
  if is_anothers(h, fp) then return put(MISMATCH) end
  -- A result is a result, also in quarantine.
  if h[5] and ARGV[a + 6] ~= '1' then return put_completed(h, shown(key)) end
  if left > 0 then return put(QUARANTINED) end
  local value = h[5] and shown(key)
  if value == nil then return end
  local fence, attempt = tonumber(h[2]) or 0, tonumber(h[4]) or 0
  local till = tonumber(h[3]) or 0
  -- The clock of the server before may have been behind.
  if settling and till > 0 then till = till + apart end
  local rest = till - now_ms
  if rest > 0 then
    if h[1] == owner then return put_claimed(h, value, fence, attempt) end
    if not h[5] then
      put(IN_FLIGHT)
      return put(rest)
    end
  end
  local created = tonumber(ARGV[a + 7])
  if created and created + tonumber(ARGV[a + 3]) < now_ms then return put(TOO_OLD) end
  fence = next_fence(fence, ARGV[a + 4])
  attempt = attempt + 1
  call('HSET', key, 'own', owner, 'fence', digits(fence), 'till',
    digits(now_ms + tonumber(ARGV[a + 2])), 'att', attempt, 'g', id)
  know(key, h, fp)
  keep(key, ARGV[a + 3])
  put_claimed(h, value, fence, attempt)
end
