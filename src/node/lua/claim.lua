-- Claims an idempotency key: stores the ballot of the claim in the record, and puts the result if
-- the record has one.
-- KEYS  1 record
-- ARGV  1 owner  2 lease ms  3 ms for which the record is kept, the lease included
--       4 proposed ballot  5 fingerprint of the request, or ''
--       6 force: 1 to claim the key even if it has a result, else 0
--       7 latest time in ms at which the claim is allowed (end of the request's retention), or ''
--       8 1 if the client waits for a hint that the running claim has ended, else 0
-- Puts  for a granted claim: its fence, the number of the attempt, the ballot of the result or 0,
--       the value of the result if there is one (false if only the fact is kept), the ballot of the
--       steps or 0, the list of the steps if there is one
--       | COMPLETED, ballot of the result, value or false: the key has a result
--       | IN_FLIGHT, ms left: another claim runs
--       | MISMATCH: the record has another fingerprint
--       | TOO_OLD: the time of argument 7 has passed
--       | FULL: the server's memory is full
--       | QUARANTINED: a quarantine runs
--       | WRONG_TYPE: the key belongs to another program (records.lua puts it)
--       | DEFERRED: the answer is full, so nothing was done
if kind == 'C' then
  local owner, fp = ARGV[a + 1], ARGV[a + 5]
  if is_anothers(fp) then return put(MISMATCH) end
  -- A stored result is returned even during a quarantine.
  if rf and ARGV[a + 6] ~= '1' then return put_completed(shown()) end
  if left > 0 then return put(QUARANTINED) end
  -- (quarantine 11): the previous master's clock, by which the lease may be measured, may be behind
  -- this one by `apart`.
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
    if b.full then return put(FULL) end
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
