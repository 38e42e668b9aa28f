-- Delete the owners' locks, and wake who waits for those that are free then: also where nothing was
-- there to delete. Kind D, a run in two commands; Q, a run on a node where somebody waits. It
-- captures nothing, as it is made each time (helpers.lua).
-- The queue's value is 1 if somebody watches the lock, else 0. Behind it per waiter, the longest
-- first: since when it waits by this clock, in µs (16 digits), a colon, its handle (16 hex digits),
-- for how many ms the lock is reserved for it (2 digits). Who has no connection any more is passed
-- over. A hint may be lost, so a missing permission to publish is no fault of the op: all are
-- woken on the common channel then, and nothing is reserved.
-- A lock that is reserved has six dashes and the handle as its value. A handle that does not need
-- it gives that back as if it were its owner.
-- KEYS     per op: 1 lock   2 queue (Q only: each key costs as much as a small command)
-- ARGV     1 kind  2 how many, then per op: 1 owner
-- Returns  nothing if each is done, else what was found under the keys
local function release(k, a, count, each, awaited)
  local KEYS, ARGV, call = KEYS, ARGV, redis.call
  local lock = KEYS[k + 1]
  if count == 1 and each == 1 and not awaited and redis.pcall('GET', lock) == ARGV[a + 3] then
    call('DEL', lock)
    return
  end
  -- MGET shows nothing where a key holds no string: what other programs keep there is left alone.
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
    -- Who sent D did not know yet that somebody waits here: perhaps for one of these.
    for i = 1, m do redis.pcall('PUBLISH', 'palisade:changed', gone[i]) end
  end
  if missed then return found end
end
