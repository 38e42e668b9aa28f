-- Take a free lock. Kind A, or W for who waits and wants a hint.
-- KEYS  1 lock   2 fence   3 queue (W only: each key and argument costs as much as a small command)
-- ARGV  1 owner  2 ttl ms  3 proposal
-- Puts  fence | QUARANTINED, epoch | HELD, ms | FOREIGN, ms | WRONG_TYPE (fence key)
--       ms -1: no expiry
local function acquire(k, a, queue)
  if left > 0 then return put_quarantined() end
  local lock, owner = KEYS[k + 1], ARGV[a + 1]
  if call('SET', lock, owner, 'NX', 'PX', ARGV[a + 2]) then
    local p = in_range(ARGV[a + 3])
    local old = try('SET', KEYS[k + 2], p, 'PX', fence_life, 'GET')
    -- Equal lengths: the order of digits is the order of numbers.
    if not old or (type(old) == 'string' and #old == #p and old < p) then return put(p) end
    local number = type(old) == 'string' and tonumber(old)
    if not number then -- a stranger's: as it was, as far as can be
      if type(old) == 'string' then call('SET', KEYS[k + 2], old) end
      call('DEL', lock)
      return put(WRONG_TYPE)
    end
    if number >= tonumber(p) then
      p = digits(number + 1)
      call('SET', KEYS[k + 2], p, 'PX', fence_life)
    end
    return put(p)
  end
  local value = try('GET', lock)
  if value == owner then return put(stored(KEYS[k + 2]) or WRONG_TYPE) end
  local ours = type(value) == 'string' and #value == 22 and not find(value, '[^%w_-]')
  local ms = call('PTTL', lock)
  put(ours and HELD or FOREIGN)
  put(ms)
  if queue then wait_for_hint(queue, ms >= 0 and ms + 1000 or 10000) end
end
