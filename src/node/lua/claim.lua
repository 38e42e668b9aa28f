-- Begin an idempotency record: promise this ballot, and show any result.
-- KEYS  1 record
-- ARGV  1 owner  2 lease ms  3 retention ms  4 proposal  5 fingerprint or ''  6 force: 0 or 1
--       7 created: when the request was made, ms or ''
-- Puts  fence, attempt, rf or 0, value or false if rf > 0
--       | QUARANTINED | WRONG_TYPE | MISMATCH | COMPLETED, rf, value or false | IN_FLIGHT, ms
--       | TOO_OLD | DEFERRED
if kind == 'C' then
  local owner, fp = ARGV[a + 1], ARGV[a + 5]
  if is_anothers(fp) then return put(MISMATCH) end
  -- A result is a result, also in quarantine.
  if rf and ARGV[a + 6] ~= '1' then return put_completed(shown()) end
  if left > 0 then return put(QUARANTINED) end
  local value = rf and shown()
  if value == nil then return end
  -- The clock of the server before may have been behind.
  local rest_ms = till - now_ms + (b.settling and till > 0 and b.apart or 0)
  if rest_ms <= 0 or h[1] ~= owner then
    if rest_ms > 0 and not rf then
      put(IN_FLIGHT)
      return put(rest_ms)
    end
    local created = tonumber(ARGV[a + 7])
    if created and created + tonumber(ARGV[a + 3]) < now_ms then return put(TOO_OLD) end
    -- The next above the last.
    fence, attempt = math.max(tonumber(in_range(ARGV[a + 4])), fence + 1), attempt + 1
    call('HSET', key, 'own', owner, 'fence', digits(fence), 'till',
      digits(now_ms + tonumber(ARGV[a + 2])), 'att', attempt, 'g', b.id)
    know(fp)
    keep(ARGV[a + 3])
  end
  put(fence)
  put(attempt)
  put(rf or 0)
  if rf then put(value) end
  return
end
