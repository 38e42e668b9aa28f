-- Slow path of acquire. The kinds differ in what happens if another owner has the lock: A nothing,
-- V the client watches the lock, W it waits in the queue, O it waits in the order of tickets. The
-- fast path has granted the first `rest` acquires. It may also have set lock and fence of the next:
-- then `found` is the previous fence, which still has to be checked.
-- KEYS  per op: 1 lock   2 fence   3 queue (V, W, O)
-- ARGV  as in acquire_fast.lua. Each op has further arguments after its owner and proposal:
--       W: 3 µs for which the client has waited  4 its handle, in 16 hex digits
--          5 ms for which a released lock is to be reserved for it
--       O: 3 ticket of the call, or '' if it has none yet  4, 5 as W
-- Puts  per op one of
--       the fence
--       QUARANTINED: a quarantine runs
--       HELD, ms until the lock may be free, -1 if its key does not expire
--       FOREIGN, ms as for HELD: another program's value is under the lock's key
--       WRONG_TYPE: another program wrote or deleted the fence
--       O puts two more numbers after ms: the ticket of the client on this server, 0 if it has no
--       place in the queue, and the number of places ahead
if find('AVWO', kind, 1, true) then
  -- Completes a grant that set the fence to `p` over `old`. Returns the fence for the answer, above
  -- `old`. If another program wrote `old`, undoes the grant and returns WRONG_TYPE.
  local function above(lock, fence, old, p)
    local number = type(old) == 'string' and tonumber(old)
    if not number or number >= 1e18 then -- another program's: put back, without its expiry
      if type(old) == 'string' then redis.call('SET', fence, old) end
      redis.call('DEL', lock)
      return -5
    end
    number = honest(number)
    if number >= tonumber(p) then
      p = string.format('%.0f', number + 1)
      keep_fence(fence, p)
    end
    return p
  end

  if (kind == 'W' or kind == 'O') and left <= 0
    and look(KEYS[k + 1], '22') == '------' .. ARGV[a + 8] then
    call('DEL', KEYS[k + 1])
  end

  local ttl, old = ARGV[a + 3], found
  local ticket, ahead, kept
  if kind == 'O' then ticket, ahead, kept = standing(KEYS[k + 3], ARGV[a + 8], ARGV[a + 7]) end
  for i = 1, count do
    local lock, fence, owner, p = KEYS[k + 1], KEYS[k + 2], ARGV[a + 5], ARGV[a + 6]
    if i <= rest then
      put(p)
    elseif left > 0 then
      put(QUARANTINED)
    elseif old or not (b.settling and is_kept(lock, fence))
      and not (ticket and ahead > 0) and call('SET', lock, owner, 'NX', 'PX', ttl) then
      if not old then
        p = in_range(p)
        old = try('SET', fence, p, 'PX', fence_life(fence), 'GET')
      end
      -- Tokens with equally many digits compare as strings. The length of an error reply is 0.
      if old and (#old ~= #p or old >= p) then p = above(lock, fence, old, p) end
      put(p)
      old = nil
      if ticket and ARGV[a + 7] ~= '' then
        wait_for_hint(KEYS[k + 3], FRESH, nil, ARGV[a + 8], ARGV[a + 9], 'X', nil, ticket)
      end
    else
      local value = look(lock, '22')
      if value == owner then
        -- From an earlier request. A fence is kept longer than its lock, so without one another
        -- program has deleted it.
        local given = stored(fence)
        put(given and given > 0 and given or WRONG_TYPE)
      else
        local ms = call('PTTL', lock)
        if ticket and not value then ms = kept end
        -- A free lock was not granted: O, and others have smaller tickets.
        put((not value or is_ours(lock, value)) and HELD or FOREIGN)
        put(ms)
        ms = ms >= 0 and ms + 1000 or 10000
        if kind == 'V' then wait_for_hint(KEYS[k + 3], ms) end
        if kind == 'W' then
          wait_for_hint(KEYS[k + 3], ms, ARGV[a + 7], ARGV[a + 8], ARGV[a + 9], 'x')
        end
        if ticket then
          ms = math.max(ms, FRESH)
          local needs = ARGV[a + 9]
          local placed = wait_for_hint(KEYS[k + 3], ms, nil, ARGV[a + 8], needs, 'X', nil, ticket)
          put(placed and ticket or 0)
          put(ahead)
        end
      end
    end
    k, a = k + 2, a + 2
  end
  return
end
