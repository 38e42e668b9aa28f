-- Extends the owner's lock, or sets it again if it is absent. In a quarantine only if the holder
-- names it: otherwise this server may have forgotten another attempt's grant, or a server that it
-- replaced may still grant from an older copy of the data.
-- KEYS  1 lock   2 fence   3 metadata of the holder   4 queue
-- ARGV  1 owner  2 ttl ms  3 fencing token of the owner  4 1 if metadata are given, else 0
--       5 metadata  6 name of the quarantine in which the holder may extend, or ''
-- Puts  DONE | NOT_OWNER: another owner has the lock
--       | QUARANTINED: a quarantine runs, and argument 6
--         does not name it
--       | WRONG_TYPE: another program wrote the fence key
if kind == 'X' then
  local owner, ttl = ARGV[a + 1], ARGV[a + 2]
  local value = look(KEYS[k + 1], '22')
  if value and value ~= owner and not is_ownerless(value) then return put(NOT_OWNER) end
  if not may_extend(ARGV[a + 6]) then return put(QUARANTINED) end
  local fence = stored(KEYS[k + 2])
  if not fence then return put(WRONG_TYPE) end
  local token = ARGV[a + 3]
  if fence > tonumber(token) then token = digits(fence) end
  call('SET', KEYS[k + 1], owner, 'PX', ttl)
  keep_fence(KEYS[k + 2], token)
  if ARGV[a + 4] == '1' then
    local before = look(KEYS[k + 3], #ARGV[a + 5])
    call('SET', KEYS[k + 3], ARGV[a + 5], 'PX', ttl)
    if before ~= ARGV[a + 5] then hint(KEYS[k + 4], KEYS[k + 1]) end
  elseif is_meta(KEYS[k + 3]) then
    call('PEXPIRE', KEYS[k + 3], ttl)
  end
  return put(DONE)
end
