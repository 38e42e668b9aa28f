-- Releases a lock and deletes its metadata, with which a next holder that publishes none would be
-- shown. If the owner is the reservation of a fair waiter (six dashes and its handle), also removes
-- its place (fair 4).
-- KEYS  1 lock   2 queue   3 metadata
-- ARGV  1 owner
-- Puts  DONE | NOT_OWNER: another owner has the lock | ABSENT: the lock is free
if kind == 'M' then
  local value = look(KEYS[k + 1], '22')
  if is_ownerless(ARGV[a + 1]) then give_up(KEYS[k + 2], sub(ARGV[a + 1], 7)) end
  if value ~= ARGV[a + 1] and is_ownerless(value) then value = false end
  if value and value ~= ARGV[a + 1] then return put(NOT_OWNER) end
  if value and is_meta(KEYS[k + 3]) then call('DEL', KEYS[k + 3]) end
  release(k, a - 2, 1, 2, nil, wake, b.now_us)
  return put(value and DONE or ABSENT)
end
