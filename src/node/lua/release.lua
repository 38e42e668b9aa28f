-- Deletes the owners' locks, and wakes clients that wait for a lock that is free afterwards, even
-- if there was nothing to delete (wake.lua). D deletes the locks of a run in two commands, without
-- a look at the queues; Q is for a server on which a client may wait. A handle that does not need a
-- reserved lock any more releases it as if its value, six dashes and the handle, were the owner. No
-- upvalues (helpers.lua).
-- KEYS     per op: 1 lock   2 queue (Q only: each key costs as much as a small command)
-- ARGV     1 kind  2 number of ops, then per op: 1 owner
--          Parameters: `each`: number of KEYS per op; `awaited`: true if the note says that a
--          client waits on this server
-- Returns  nothing if each owner had its lock and it is deleted. Else for each op 1 if it had; or
--          the first bytes of the value that was there, false if there was none, -5 if the key has
--          no string
local function release(k, a, count, each, awaited, wake, now_us)
  local KEYS, ARGV, call = KEYS, ARGV, redis.call
  local lock = KEYS[k + 1]
  if count == 1 and each == 1 and not awaited and redis.pcall('GET', lock) == ARGV[a + 3] then
    call('DEL', lock)
    return
  end
  -- No value for a key that holds no string, so keys of other programs are left alone.
  local found = call('MGET', unpack(KEYS, k + 1, k + each * count))
  local gone, taken, m = {}, {}, 0
  for i = 1, count do
    local lock, value = KEYS[k + each * i - each + 1], found[each * i - each + 1]
    if taken[lock] then
      value = false -- an earlier release of this run deletes it
    elseif value == ARGV[a + 2 + i] then
      m = m + 1
      gone[m], taken[lock], value = lock, true, 1
    elseif value then
      value = string.sub(value, 1, 23)
    else
      value = call('EXISTS', lock) == 1 and -5
    end
    taken[i] = value
  end
  if m > 0 then call('DEL', unpack(gone)) end
  if each == 2 then
    for i = 1, 2 * count, 2 do
      local v, lock = found[i + 1], KEYS[k + i]
      if v and #v % 48 == 1 and string.find(v, '^[01]')
        and (m == count or call('EXISTS', lock) == 0) then
        wake(lock, KEYS[k + i + 1], v, now_us)
      end
    end
  elseif awaited then
    -- The client that sent D had not seen yet that another waits on this server, maybe for one of
    -- these.
    for i = 1, m do redis.pcall('PUBLISH', 'palisade:changed', gone[i]) end
  end
  if m < count then return taken end
end
