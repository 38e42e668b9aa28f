-- Sets the promise of the record to the claim's ballot, and puts the result if there is one.
-- Refuses while the promise is of an earlier data history, because the server may have forgotten a
-- higher promise.
-- KEYS  1 record
-- ARGV  1 owner  2 ballot
-- Puts  DONE | NOT_OWNER | WRONG_TYPE | COMPLETED, rf, value | DEFERRED
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
