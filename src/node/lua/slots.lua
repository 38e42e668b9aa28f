-- Permits of a semaphore: acquire (P), extend (Y), release (F), raise the fence (U). A semaphore is
-- one string with 51 characters per slot: the owner (22 characters; dots after a release, the value
-- of a reserved lock while reserved), the end of the grant in ms by this clock (13 digits), and the
-- fence (16 digits). Each write sets it with one SET, which never shortens its life. Slots that the
-- caller does not know stay; missing ones are appended.
-- KEYS  1 semaphore   P, Y, F: 2 queue
-- ARGV  1 owner
--       P: 2 ttl ms  3 number of slots  4 first slot to look at  5 distance to the next slot to
--          look at, or 0 if only the slot of argument 4 is wanted  6 proposed fence
--          7 to 11 as in join.lua; 7 is '' if the client neither waits nor watches
--       Y: 2 ttl ms  3 fencing token of the owner  4 slot of the permit  5 number of slots
--          6 name of the quarantine in which the owner may extend, or ''
--       F: 2 number of slots  3 slot of the permit, or '' for any
--       U: 2 fencing token of the owner  3 slot of the permit
-- Puts  P: fence, slot
--          | QUARANTINED: a quarantine runs
--          | HELD, ms until a slot may be free, -1 if the semaphore has no such slot
--          | FOREIGN, ms: another program wrote the key, which expires after ms (-1: never)
--       Y: DONE | NOT_OWNER: another owner has the slot | QUARANTINED (unless argument 6 names it)
--       F: DONE | NOT_OWNER: another owner has the slot | ABSENT: the owner had no permit
--       U: DONE | NOT_OWNER: the owner does not have the slot, or its fence is above the token
--          | QUARANTINED
if find('PYFU', kind, 1, true) then
  local record, owner = KEYS[k + 1], ARGV[a + 1]
  local v = look(record, '13056')
  local is_foreign = v and (type(v) ~= 'string' or #v > 13056 or #v % 51 ~= 0
    or not find(sub(v, 1, 51), '^[%w_.%-]+$') or not find(sub(v, 23, 51), '^%d+$'))
  local released = string.rep('.', 22)
  local now = string.format('%013.0f', now_ms)

  -- Appends free slots up to this number.
  local function make(slots)
    v = v or ''
    local missing = slots - #v / 51
    if missing > 0 then v = v .. string.rep(released .. string.rep('0', 29), missing) end
  end

  local function who(slot)
    return sub(v, 51 * slot + 1, 51 * slot + 22)
  end

  -- A text of 13 digits. Such texts compare like numbers.
  local function till(slot)
    return sub(v, 51 * slot + 23, 51 * slot + 35)
  end

  local function fence_of(slot)
    return tonumber(sub(v, 51 * slot + 36, 51 * slot + 51)) or 0
  end

  local function write(slot, owner, till, fence)
    v = sub(v, 1, 51 * slot) .. owner .. string.format('%013.0f%016.0f', till, fence)
      .. sub(v, 51 * slot + 52)
  end

  -- Other owners may have longer leases than this client's (locks 5).
  local function keep()
    call('SET', record, v, 'PX', math.max(tonumber(b.fence_life), call('PTTL', record)))
  end

  -- Not before `from`; nil or false if there is none.
  local function slot_of(owner, from)
    local at = find(v, owner, 51 * (from or 0) + 1, true)
    return at and at % 51 == 1 and (at - 1) / 51
  end

  -- Soon after a planned handover later than the end of the grant, which may have ended too early
  -- by this clock (quarantine 11).
  local function taken_till(slot)
    local ends = tonumber(till(slot)) or 0
    if b.settling and ends > 0 and not is_ownerless(who(slot)) then ends = ends + b.apart end
    return ends
  end

  local function is_free(slot)
    if till(slot) > now then return false end
    return not b.settling or taken_till(slot) <= now_ms
  end

  local function is_anothers(slot)
    local has = who(slot)
    return till(slot) > now and has ~= owner and is_owner(has) and not is_ownerless(has)
  end

  -- Returns a list of them.
  local function leave()
    local freed, slot = {}, slot_of(owner)
    while slot do
      freed[#freed + 1] = slot
      write(slot, released, 0, fence_of(slot))
      slot = slot_of(owner, slot + 1)
    end
    return freed
  end

  -- One waiter for each free slot, which is reserved for it. The first gets the highest slot that
  -- it knows, so that lower ones are left for waiters that know fewer. One without a connection is
  -- skipped. Without the right to publish to a handle, all are woken on the common channel
  -- (wake.lua).
  local function hand_on(free)
    local queue = b.waited > now_ms and #free > 0 and queued(KEYS[k + 2])
    if not queue then return end
    local watched, at, rest = sub(queue, 1, 1), 2, ''
    while free[1] and at < #queue do
      local handle, n = sub(queue, at + 17, at + 32), #free
      local known = tonumber(sub(queue, at + 35, at + 47)) or 0
      while n > 0 and free[n] >= known do n = n - 1 end
      local heard = n > 0 and try('PUBLISH', 'palisade:changed:' .. handle, record)
      if not heard then
        rest = rest .. sub(queue, at, at + 47)
      elseif type(heard) == 'table' then
        watched, at, rest = '1', #queue, ''
      elseif heard > 0 then
        local ms, slot = tonumber(sub(queue, at + 33, at + 34)) or 0, table.remove(free, n)
        if ms > 0 then write(slot, '------' .. handle, now_ms + ms, fence_of(slot)) end
      end
      at = at + 48
    end
    keep()
    if watched == '1' then try('PUBLISH', 'palisade:changed', record) end
    queue = '0' .. rest .. sub(queue, at)
    if queue == '0' then
      call('DEL', KEYS[k + 2])
    else
      call('SET', KEYS[k + 2], queue, 'KEEPTTL')
    end
  end

  if kind == 'F' then
    if is_foreign then return put(NOT_OWNER) end
    if not v then return put(ABSENT) end
    local own, code = slot_of(owner), ABSENT
    if own and till(own) > now then code = DONE end
    local free = leave()
    if #free > 0 then
      keep()
    else
      local named = tonumber(ARGV[a + 3])
      if named and 51 * named < #v and is_anothers(named) then code = NOT_OWNER end
      for slot = 0, math.min(tonumber(ARGV[a + 2]), #v / 51) - 1 do
        if is_free(slot) then
          free[1] = slot
          break
        end
      end
    end
    put(code)
    return hand_on(free)
  end

  if kind == 'Y' then
    local slot, token = tonumber(ARGV[a + 4]), tonumber(ARGV[a + 3])
    if is_foreign then return put(NOT_OWNER) end
    local is_taken = v and 51 * slot < #v and is_anothers(slot)
    if not may_extend(ARGV[a + 6]) then return put(is_taken and NOT_OWNER or QUARANTINED) end
    if is_taken then
      -- Its slot is lost, and it needs no other.
      local freed = leave()
      if #freed > 0 then keep() end
      put(NOT_OWNER)
      return hand_on(freed)
    end
    make(math.max(tonumber(ARGV[a + 5]), slot + 1))
    leave()
    local ends = math.ceil(b.now_us / 1000) + tonumber(ARGV[a + 2])
    write(slot, owner, ends, math.max(fence_of(slot), token))
    keep()
    return put(DONE)
  end

  if left > 0 then return put(QUARANTINED) end

  if kind == 'U' then
    local slot, token = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 2])
    if is_foreign or not v or who(slot) ~= owner or till(slot) <= now
      or fence_of(slot) > token or is_ahead(token)
    then
      return put(NOT_OWNER)
    end
    write(slot, owner, tonumber(till(slot)), token)
    keep()
    return put(DONE)
  end

  local function refuse(code, ms)
    put(code)
    put(ms)
    if ARGV[a + 7] ~= '' then join(b, record, KEYS[k + 2], a + 6) end
  end

  local slots, start, step = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5])
  if slots < 1 or slots > 256 or step == 0 and start >= slots then
    -- It never becomes free: -1 instead of a time.
    put(HELD)
    return put(-1)
  end
  if is_foreign then return refuse(FOREIGN, call('PTTL', record)) end
  make(slots)
  local own, chosen = slot_of(owner), nil
  if own and till(own) <= now then own = nil end
  if own and (step > 0 or own == start) then
    put(digits(math.max(fence_of(own), 1)))
    return put(own)
  end
  if ARGV[a + 7] == 'x' then
    local mine = slot_of('------' .. ARGV[a + 8])
    while mine and (till(mine) <= now or mine >= slots or step == 0 and mine ~= start) do
      mine = slot_of('------' .. ARGV[a + 8], mine + 1)
    end
    chosen = mine
  end
  local slot, ends = start, nil
  for _ = 1, step > 0 and slots or 1 do
    if chosen or is_free(slot) or step == 0 and is_ownerless(who(slot)) then
      chosen = chosen or slot
      break
    end
    ends = math.min(ends or taken_till(slot), taken_till(slot))
    slot = (slot + step) % slots
  end
  if not chosen then
    local freed = step == 0 and leave() or {}
    if #freed > 0 then keep() end
    refuse(HELD, math.max(ends - now_ms, 0))
    return hand_on(freed)
  end
  local p, old = tonumber(in_range(ARGV[a + 6])), fence_of(chosen)
  if old >= p then p = honest(old) + 1 end
  leave()
  write(chosen, owner, math.ceil(b.now_us / 1000) + tonumber(ARGV[a + 2]), p)
  keep()
  put(digits(p))
  return put(chosen)
end
