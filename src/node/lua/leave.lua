-- Takes readers from a lock. The key ends with the last one that is left; if none is, or nothing
-- was there, wakes who waits (wake.lua). No upvalues (helpers.lua).
-- KEYS     1 lock   2 queue
-- ARGV     1 kind (G)  2 number of ops, then per op: 1 owner
--          Parameter `waits`: the note says that a client waits
-- Returns  nothing if each owner was a reader. Else for each op 1 if it was, or if the lock was its
--          own; -1 if others read; else as release.lua
local function leave(k, a, count, waits, release, wake, now_us)
  local KEYS, ARGV, call, try, find = KEYS, ARGV, redis.call, redis.pcall, string.find
  local lock, queue, found, gone, missed = KEYS[k + 1], '', {}, {}, false
  -- All reads come first: who lacks a right changes nothing.
  local last = try('ZRANGE', lock, -1 - count, '-1', 'WITHSCORES')
  if last.err and not find(last.err, 'WRONGTYPE', 1, true) then call('ZRANGE', lock, '0', '0') end
  if waits then queue = try('GETRANGE', KEYS[k + 2], '0', '3120') end
  local is_ours = last[1] and #last[1] == 22 and call('PTTL', lock) >= 0
  for i = 1, count do
    local owner = ARGV[a + 2 + i]
    if is_ours and call('ZREM', lock, owner) == 1 then
      found[i], gone[owner] = 1, true
    elseif last[1] then
      missed = true
      found[i] = is_ours and -1 or -5
    else
      local other = release(k, a + i - 1, 1, 2, nil, wake, now_us)
      missed = true
      if other then found[i] = other[1] else found[i] = 1 end
    end
  end
  local at = last[1] and #last - 1 or 0
  while at > 0 and gone[last[at]] do at = at - 2 end
  if not next(gone) then
    return found
  elseif at > 0 and last[at + 1] * 1000 > now_us then
    call('PEXPIREAT', lock, last[at + 1])
  else
    if at > 0 then call('DEL', lock) end
    if not queue.err and #queue % 48 == 1 and find(queue, '^[01]') then
      wake(lock, KEYS[k + 2], queue, now_us)
    end
  end
  if missed then return found end
end
