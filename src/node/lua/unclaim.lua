-- Ends a claim's lease before its time.
-- KEYS  1 record
-- ARGV  1 owner of the claim
--       2 end of the attempt: u it did nothing, r it may be repeated, l it may have had an effect.
--       After l the attempt stays counted, after u and r it is not counted
-- Puts  DONE
--       | NOT_OWNER: another owner has the claim, or the claim has ended
--       | ABSENT: the key was never claimed
--       | WRONG_TYPE: the key belongs to another program (records.lua puts it)
if kind == 'u' then
  local ends = ARGV[a + 2]
  if not h[2] then return put(ABSENT) end
  if h[1] ~= ARGV[a + 1] or rf or till == 0 then return put(NOT_OWNER) end
  if ends ~= 'l' and attempt > 0 then attempt = attempt - 1 end
  -- Without an owner, no request that is under way extends or completes the claim.
  call('HSET', key, 'own', '', 'till', '0', 'att', attempt)
  wake()
  if attempt == 0 and ends == 'u' and not steps then
    -- The key is then as if it had never been claimed, but for its last ballot. Its life stays:
    -- late requests of other clients have to be refused, too (idempotency 4).
    call('HDEL', key, 'fp')
  end
  return put(DONE)
end
