-- Sets the fence to the owner's token, if the lock is the owner's and no higher token was given.
-- KEYS  1 lock   2 fence
-- ARGV  1 owner  2 token
-- Puts  DONE | NOT_OWNER | QUARANTINED
if kind == 'R' then
  if left > 0 then return put(QUARANTINED) end
  if try('GETRANGE', KEYS[k + 1], '0', '22') ~= ARGV[a + 1] then return put(NOT_OWNER) end
  local fence, token = stored(KEYS[k + 2]), tonumber(ARGV[a + 2])
  if not fence or fence > token or is_ahead(token) then return put(NOT_OWNER) end
  call('SET', KEYS[k + 2], ARGV[a + 2], 'PX', b.fence_life)
  return put(DONE)
end
