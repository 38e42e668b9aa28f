-- Deletes the owners' locks, and wakes clients that wait for the locks that are free then, even if
-- there was nothing to delete. Kind D deletes a run in two commands, without a look at the queues.
-- Kind Q is for a node where a client waits. The function has no upvalues, because it is created
-- anew on every call of the script (helpers.lua).
-- The value of a queue begins with 1 if a client watches the lock, else with 0. Then it has for
-- each waiter, the longest wait first: the start of the wait by this server's clock, in µs (16
-- digits), a colon, the waiter's handle (16 hex digits), and the ms for which the lock is reserved
-- for it (2 digits). A waiter whose connection for hints is gone is skipped. If the user may not
-- publish to a handle's channel, the op does not fail, because a hint may be lost: all are then
-- woken on the common channel, and nothing is reserved.
-- A reserved lock has six dashes and the handle as its value. A handle that does not need the lock
-- any more releases it as if this value were its owner.
-- KEYS     per op: 1 lock   2 queue (Q only: each key costs as much as a small command)
-- ARGV     1 kind  2 number of ops, then per op: 1 owner
--          each: number of KEYS per op   awaited: true if the marker says that a client waits here
-- Returns  nothing if each op is done, else the values that the keys had
local function release(k, a, count, each, awaited)
  local KEYS, ARGV, call = KEYS, ARGV, redis.call
  local lock = KEYS[k + 1]
  if count == 1 and each == 1 and not awaited and redis.pcall('GET', lock) == ARGV[a + 3] then
    call('DEL', lock)
    return
  end
  -- MGET shows no value for a key that holds no string, so such keys of other programs are left
  -- alone.
  local found = call('MGET', unpack(KEYS, k + 1, k + each * count))
  local gone, m, missed = {}, 0, false
  for i = 1, count do
    local at = each * i - each + 1
    if found[at] == ARGV[a + 2 + i] then
      m = m + 1
      gone[m] = KEYS[k + at]
    else
      missed = true
    end
  end
  if m > 0 and call('DEL', unpack(gone)) < m then missed = true end
  if each == 2 then
    for i = 1, 2 * count, 2 do
      local v, lock = found[i + 1], KEYS[k + i]
      if v and #v % 35 == 1 and string.find(v, '^[01]')
        and (m == count or call('EXISTS', lock) == 0) then
        local from, heard, watched, handle = 2, 0, string.sub(v, 1, 1) == '1', nil
        while heard == 0 and from < #v do
          handle = string.sub(v, from + 17, from + 32)
          heard = redis.pcall('PUBLISH', 'palisade:changed:' .. handle, lock)
          from = from + 35
        end
        if type(heard) == 'table' then
          from, watched = #v, true
        elseif heard > 0 then
          local ms = string.match(string.sub(v, from - 2, from - 1), '^0?([1-9]%d?)$')
          if ms then call('SET', lock, '------' .. handle, 'NX', 'PX', ms) end
        end
        if watched then redis.pcall('PUBLISH', 'palisade:changed', lock) end
        if from < #v then
          call('SET', KEYS[k + i + 1], '0' .. string.sub(v, from), 'KEEPTTL')
        else
          call('DEL', KEYS[k + i + 1])
        end
      end
    end
  elseif awaited then
    -- The client that sent kind D did not know yet that another one waits on this node, perhaps for
    -- one of these locks.
    for i = 1, m do redis.pcall('PUBLISH', 'palisade:changed', gone[i]) end
  end
  if missed then return found end
end
