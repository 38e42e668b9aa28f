-- Takes locks that are free, each with a fence above the last one. The clock is in the window for
-- which the client has judged: no proposal is out of range, nothing is kept. No upvalues
-- (helpers.lua).
-- KEYS     per op: 1 lock   2 fence
-- ARGV     1 kind  2 number of ops  3 ttl ms  4 fence kept for ms, then per op: 1 owner  2 proposal
--          (proposed fencing token). Parameter `reserved`: value of a lock that is free, but
--          reserved for the caller
-- Returns  nothing if every op took its lock with its proposal as its fence. Else a table, with for
--          the place of each other op: its fence as text; 2 if somebody has the lock; 0 if the lock
--          is free, and its fence is one that the rule has to judge
local function acquire(k, a, count, reserved)
  local KEYS, ARGV, call, try, find = KEYS, ARGV, redis.call, redis.pcall, string.find
  local ttl, life, odd = ARGV[a + 3], ARGV[a + 4], nil
  a = a + 4
  for i = 1, count do
    local lock, fence, owner, p = KEYS[k + 1], KEYS[k + 2], ARGV[a + 1], ARGV[a + 2]
    local got, is = call('SET', lock, owner, 'NX', 'PX', ttl), nil
    if not got and reserved and try('GETRANGE', lock, '0', '22') == reserved then
      got = call('SET', lock, owner, 'PX', ttl)
    end
    local old = got and try('SET', fence, p, 'PX', life, 'GET')
    -- Tokens with equally many digits compare as strings. So another program's text of this length
    -- may count as one. The length of an error reply is 0.
    if not got then
      is = 2
    elseif old and (#old ~= #p or old >= p) then
      local n = not old.err and #old < 19 and find(old, '^%d+$') and tonumber(old)
      -- Few correct clocks are so far apart.
      if not n or n >= p + 1000000 then
        if n then call('SET', fence, old, 'PX', life)
        elseif not old.err then call('SET', fence, old) end
        call('DEL', lock)
        is = 0
      elseif n >= tonumber(p) then
        is = string.format('%.0f', n + 1)
        call('SET', fence, is, 'PX', life)
      end
    end
    if is then
      odd = odd or {}
      odd[i] = is
    end
    k, a = k + 2, a + 2
  end
  return odd
end
