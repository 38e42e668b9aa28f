-- Sets the promise of an idempotency record to the claim's ballot, and puts the result if there is
-- one. Refuses while the promise is of an earlier data history, because a higher one may have been
-- forgotten (idempotency 3).
-- KEYS  1 record
-- ARGV  1 owner of the claim  2 ballot of the claim
-- Puts  DONE | NOT_OWNER: refused
--       | COMPLETED, ballot of the result, result or false (only the fact is kept)
--       | WRONG_TYPE: the key belongs to another program (records.lua puts it)
--       | DEFERRED: the answer is full, so nothing was done
if kind == 'r' then
  local ballot = tonumber(ARGV[a + 2])
  if h[1] ~= ARGV[a + 1] or h[6] ~= b.id or fence > ballot or is_ahead(ballot) then
    return put(NOT_OWNER)
  end
  local value = rf and shown()
  if value == nil then return end
  call('HSET', key, 'fence', ARGV[a + 2])
  if rf then return put_completed(value) end
  return put(DONE)
end
