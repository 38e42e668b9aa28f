-- Take a free lock. Kind A, or W for who waits and wants a hint.
-- KEYS  1 lock   2 fence   3 queue (W only: each key and argument costs as much as a small command)
-- ARGV  1 owner  2 ttl ms  3 proposal
-- Puts  fence | QUARANTINED, epoch | HELD, ms | FOREIGN, ms | WRONG_TYPE (fence key)
--       ms -1: no expiry
local function acquire(k, a, queue)
  if left > 0 then return put_quarantined() end
  local lock, owner = KEYS[k + 1], ARGV[a + 1]
  if not call('SET', lock, owner, 'NX', 'PX', ARGV[a + 2]) then
    return rarely().refuse(lock, KEYS[k + 2], owner, queue)
  end
  local p = in_range(ARGV[a + 3])
  local old = try('SET', KEYS[k + 2], p, 'PX', fence_life, 'GET')
  -- Equal lengths: the order of digits is the order of numbers.
  if old and not (type(old) == 'string' and #old == #p and old < p) then
    p = rarely().above(lock, KEYS[k + 2], old, p)
  end
  n = n + 1
  out[n] = p
end
