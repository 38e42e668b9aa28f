-- Takes readers from a lock, and those whose grants are over. The key ends with the last one that
-- is left; if none is, or nothing was there, wakes who waits (wake.lua). No upvalues (helpers.lua).
-- KEYS     1 lock   2 queue
-- ARGV     1 kind (G)  2 number of ops, then per op: 1 owner
-- Returns  nothing if each owner was a reader. Else for each op 1 if it was, or if the lock was its
--          own; -1 if others read; else as release.lua
local function leave(k, a, count, release, wake, now_us)
  local KEYS, ARGV, call, try = KEYS, ARGV, redis.call, redis.pcall
  local lock, found, freed = KEYS[k + 1], {}, nil
  local missed = false
  for i = 1, count do
    local gone = try('ZREM', lock, ARGV[a + 2 + i])
    if gone == 1 then
      found[i], freed = 1, true
    else
      missed = true
      local first = gone == 0 and call('ZRANGE', lock, '0', '0')[1]
      if not first then
        if type(gone) == 'table' and not string.find(gone.err, 'WRONGTYPE', 1, true) then
          call('ZREM', lock, '') -- fails again
        end
        local other = release(k, a + i - 1, 1, 2, nil, wake, now_us)
        if other then found[i] = other[1] else found[i] = 1 end
      else
        local is_ours = #first == 22 and call('PTTL', lock) >= 0
        found[i], freed = is_ours and -1 or -5, freed or is_ours
      end
    end
  end
  if freed then
    call('ZREMRANGEBYSCORE', lock, '-inf', string.format('%.0f', math.floor(now_us / 1000)))
    local last = call('ZRANGE', lock, '-1', '-1', 'WITHSCORES')[2]
    if last then
      call('PEXPIREAT', lock, last)
    else
      local v = try('GETRANGE', KEYS[k + 2], '0', '3120')
      if not v.err and #v % 48 == 1 and string.find(v, '^[01]') then
        wake(lock, KEYS[k + 2], v, now_us)
      end
    end
  end
  if missed then return found end
end
