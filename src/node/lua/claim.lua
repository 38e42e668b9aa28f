-- Claims an idempotency key: stores the ballot of the claim in the record, and returns the result
-- if the record has one.
-- KEYS  1 record
-- ARGV  1 owner  2 lease ms  3 ms to keep the record for, the lease included  4 proposal
--       5 fingerprint or ''  6 force: 0 or 1  7 latest time for the claim, which is the end of the
--       request's retention, ms or ''  8 wait for a hint: 0 or 1
-- Puts  fence, attempt, rf (the result's ballot) or 0, value or false if rf > 0, ballot of the
--       steps or 0, steps if that is > 0
--       | QUARANTINED | WRONG_TYPE | MISMATCH | COMPLETED, rf, value or false | IN_FLIGHT, ms
--       | TOO_OLD | DEFERRED
if kind == 'C' then
  local owner, fp = ARGV[a + 1], ARGV[a + 5]
  if is_anothers(fp) then return put(MISMATCH) end
  -- A stored result is returned even during a quarantine.
  if rf and ARGV[a + 6] ~= '1' then return put_completed(shown()) end
  if left > 0 then return put(QUARANTINED) end
  -- After a handover the lease may be measured by the clock of the previous master. That clock may
  -- be behind this clock by `apart`, so the lease lasts longer here by `apart`.
  local rest_ms = till - now_ms + (b.settling and till > 0 and b.apart or 0)
  local mine = rest_ms > 0 and h[1] == owner
  if rest_ms > 0 and not mine and not rf then
    if ARGV[a + 8] == '1' and not h[8] then call('HSET', key, 'w', '1') end
    put(IN_FLIGHT)
    return put(rest_ms)
  end
  local value = (rf or steps) and shown()
  if value == nil then return end
  if not mine then
    local latest = tonumber(ARGV[a + 7])
    if latest and latest < now_ms then return put(TOO_OLD) end
    -- The new ballot is larger than the last ballot in the record by at least one.
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
  put(steps or 0)
  if steps then put(value or '') end
  return
end
