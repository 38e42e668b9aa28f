-- Shared grants: acquire (S), extend (H), release (G). The readers of a lock are a sorted set at
-- its key: its members are the owners, their scores the ends of their grants by this clock, in ms.
-- The key expires with the last reader. Readers' grants prolong the life of the fence, because
-- after a planned handover a free lock is kept only if it has one (quarantine 11).
-- KEYS  1 lock   S, H: 2 fence  3 queue   G: 2 queue
-- ARGV  S: 1 kind  2 number of ops  3 ttl ms  4 proposed fence of the first op
--          5 w: waits in the queue, v: watches the lock, '': neither
--          6 to 8 of a client that waits: µs that it has waited, its handle, ms for which a
--          released lock is reserved for it; then per op: 1 owner
--       G: 1 kind  2 number of ops, then per op: 1 owner
--       H: 1 owner  2 ttl ms  3 fencing token of the owner  4 name of the quarantine in which the
--          owner may extend, or ''
--       Parameter `rest`: number of releases at the beginning that shared_fast.lua has done
-- Puts  per op one of
--       S: the fence | HELD, ms until the lock may be free
--          | FOREIGN, ms until the value of another program expires, -1 if it does not
--          | QUARANTINED: a quarantine runs
--       H: DONE | NOT_OWNER: another owner has the lock
--          | QUARANTINED: a quarantine runs, and argument 4 does not name it
--       S, H: WRONG_TYPE: another program wrote the fence key
--       G: DONE | NOT_OWNER: another owner has the lock | ABSENT: the owner was no reader
--       S, H, G: NO_PERMISSION: the user lacks a command that readers need
if find('SHG', kind, 1, true) then
  local lock = KEYS[k + 1]
  if count then a = a + 1 end -- as for a single op, with the number of ops in the owner's place

  -- The op whose owner is ARGV[at].
  local function execute(at)
    local owner = ARGV[at]
    -- The reader whose grant ends first, and its end. If the key holds no sorted set, `value` is
    -- what it holds.
    local oldest, value = try('ZRANGE', lock, '0', '0', 'WITHSCORES'), false

    -- A user with the ACL rules of a version without read-write locks may lack some commands, and
    -- Redis does not undo a first write if the second fails. So each is tried first in a form that
    -- changes nothing.
    local function lacks(reply)
      local why = type(reply) == 'table' and reply.err
      return why and (find(why, 'ermission', 1, true) or find(why, 'run this command', 1, true))
    end
    if lacks(oldest) or lacks(try('ZADD', lock, 'XX', '0', '')) or lacks(try('ZREM', lock, ''))
      or lacks(try('ZREMRANGEBYSCORE', lock, '+inf', '-inf')) or lacks(try('ZSCORE', lock, ''))
      or lacks(try('ZCARD', lock)) or lacks(try('PEXPIREAT', 'palisade:none', '1'))
    then
      return put(NO_PERMISSION)
    end
    if oldest.err then value = look(lock, '22') end
    -- A sorted set without an expiry, or with other members than owner tokens, is another
    -- program's.
    local is_read = oldest[1] and is_owner(oldest[1]) and call('PTTL', lock) >= 0
    local is_foreign = oldest[1] and not is_read

    local function bury()
      if tonumber(oldest[2]) <= now_ms then
        call('ZREMRANGEBYSCORE', lock, '-inf', digits(now_ms))
      end
    end

    -- With the last reader.
    local function expire(last)
      call('PEXPIREAT', lock, last)
    end

    -- In place of a reservation or the owner's own exclusive grant, until `till`.
    local function add(flag, till)
      if value then call('DEL', lock) end
      local added = call('ZADD', lock, flag, till, owner)
      if (flag == 'CH' or added == 1) and call('ZRANGE', lock, '-1', '-1')[1] == owner then
        expire(till)
      end
    end

    if kind == 'G' then
      if value == owner or not value and not oldest[1] then
        release(k, at - 3, 1, 2, nil, wake, b.now_us)
        return put(value and DONE or ABSENT)
      end
      if value or is_foreign then
        return put(is_ownerless(value) and ABSENT or NOT_OWNER)
      end
      local gone = call('ZREM', lock, owner)
      bury()
      local last = call('ZRANGE', lock, '-1', '-1', 'WITHSCORES')[2]
      if last then expire(last) else release(k, at - 3, 1, 2, nil, wake, b.now_us) end
      return put(gone == 1 and DONE or ABSENT)
    end

    local fence, queue, till = KEYS[k + 2], KEYS[k + 3], ARGV[a + 2]
    till = digits(math.ceil(b.now_us / 1000) + till)

    if kind == 'H' then
      if is_foreign or value and value ~= owner and not is_ownerless(value) then
        return put(NOT_OWNER)
      end
      if not may_extend(ARGV[a + 4]) then return put(QUARANTINED) end
      local given, token = stored(fence), ARGV[a + 3]
      if not given then return put(WRONG_TYPE) end
      add('CH', till)
      keep_fence(fence, given < tonumber(token) and token)
      if value == owner then
        local v = queued(queue)
        if v and #v > 1 then wake(lock, queue, v, b.now_us, true) end
      end
      return put(DONE)
    end

    if left > 0 then return put(QUARANTINED) end

    local function refuse(code, ms)
      put(code)
      put(ms)
      ms = ms >= 0 and ms + 1000 or 10000
      if ARGV[a + 4] == 'v' then wait_for_hint(queue, ms) end
      if ARGV[a + 4] == 'w' then
        wait_for_hint(queue, ms, ARGV[a + 5], ARGV[a + 6], ARGV[a + 7], 's')
      end
    end

    if is_foreign or value and value ~= READERS then
      local ours = type(value) == 'string' and is_owner(value)
      return refuse(ours and HELD or FOREIGN, call('PTTL', lock))
    end
    local v = b.waited > now_ms and queued(queue)
    if v and #v > 1 then
      local since, ahead = b.now_us - math.min(tonumber(ARGV[a + 5]) or 0, 3600000000), 0
      for at = 2, #v, 48 do
        local began = string.match(sub(v, at, at + 16), '^(%d+)[xX]$')
        if began and tonumber(began) < since then
          ahead = math.max(ahead, fresh_till(v, at) - now_ms)
        end
      end
      local mine = is_read and call('ZSCORE', lock, owner)
      if ahead > 0 and not (mine and tonumber(mine) > now_ms) then
        return refuse(HELD, ahead)
      end
    end
    if is_read then
      bury()
      if call('ZCARD', lock) >= 4096 and not call('ZSCORE', lock, owner) then
        local first = call('ZRANGE', lock, '0', '0', 'WITHSCORES')[2]
        return refuse(HELD, math.max(first - now_ms, 0))
      end
    end
    local p
    local given = stored(fence)
    if not given then return put(WRONG_TYPE) end
    if given == 0 then
      p = in_range(ARGV[a + 3])
    else
      p = digits(math.max(honest(given), b.floor))
    end
    if b.settling then
      if value then
        call('DEL', lock)
        value = false
      end
      if is_kept(lock, fence) then return refuse(HELD, call('PTTL', lock)) end
    end
    add('NX', till)
    keep_fence(fence, p ~= digits(given) and p)
    return put(p)
  end

  if kind == 'H' then return execute(a + 1) end
  for _ = 1, rest do put(DONE) end
  for i = rest + 1, count do execute(a + i + (kind == 'S' and 7 or 1)) end
  return
end
