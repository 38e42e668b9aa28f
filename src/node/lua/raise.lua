-- Sets the fence to the owner's token. Refuses unless the owner holds the lock, alone or as a
-- reader, and the fence is not above the token.
-- KEYS  1 lock   2 fence
-- ARGV  1 owner  2 fencing token of the owner
-- Puts  DONE
--       | QUARANTINED: a quarantine runs
--       | NOT_OWNER: the owner has no grant, or the fence is above the token or is no number, or
--         the token is too far ahead of this clock
if kind == 'R' then
  if left > 0 then return put(QUARANTINED) end
  local value = read('GETRANGE', KEYS[k + 1], '0', '22')
  if value ~= ARGV[a + 1] then
    -- An error: the key holds no string, but maybe the readers of the lock.
    local till = type(value) == 'table' and tonumber(read('ZSCORE', KEYS[k + 1], ARGV[a + 1]))
    if not till or till <= now_ms then return put(NOT_OWNER) end
  end
  local fence, token = stored(KEYS[k + 2]), tonumber(ARGV[a + 2])
  if not fence or fence > token or is_ahead(token) then return put(NOT_OWNER) end
  keep_fence(KEYS[k + 2], ARGV[a + 2])
  return put(DONE)
end
