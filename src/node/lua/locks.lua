-- Helpers of the slow paths of ops on locks.
-- KEYS, ARGV  as for the op
-- Returns     see the comment of each function

local sub = string.sub

-- Value of a lock that is free but kept for its possible holder after a planned handover
-- (acquire.lua). It is as long as an owner token.
local KEPT = '----------------------'
-- Value of a free lock that is reserved for the readers that were woken (wake.lua).
local READERS = '------r---------------'

-- Returns true if a text has the form of an owner token, or of a value in its place.
local function is_owner(text)
  return #text == 22 and not find(text, '[^%w_-]')
end

-- Returns true if a lock's value is no owner token: the lock is kept, or reserved (wake.lua). No
-- owner token begins with six dashes.
local function is_ownerless(value)
  return type(value) == 'string' and find(value, '^%-%-%-%-%-%-[%-%xr]') and #value == 22
end

-- Returns the number in a fence key: 0 if the key is absent, nil if another program wrote its
-- value. A fence is a whole number below 1e18, so that an answer can represent it.
local function stored(key)
  local v = look(key, '18')
  if not v then return 0 end
  local number = type(v) == 'string' and string.find(v, '^%d+$') and tonumber(v)
  return number and number < 1e18 and number or nil
end

-- Returns the fence `number`, lowered to `most` if no correct clock can have given it. Correct
-- clocks give fences up to `most`, and up to 2E above `most` before a backward step of this clock.
-- A larger fence was written by another program, or by a client with a wrong clock. Clients do not
-- count a grant with the lowered fence at once, but do so when their own clocks have advanced
-- enough.
local function honest(number)
  local most = b.now_us + 6 * b.clock_error + 1000000
  return number > most + 2 * b.clock_error and most or number
end

-- Returns true if the lock, which is absent here, may still be held. Soon after a planned handover
-- its lease may have ended too early by this server's clock. So the first acquire of a name that
-- was used lately sets the lock to KEPT for as long as two clocks may differ. Later acquires do not
-- set it again.
local function is_kept(lock, fence)
  if redis.call('EXISTS', lock) == 1 or redis.call('EXISTS', fence) == 0 then return false end
  if redis.pcall('HSET', 'palisade:settled', lock, '1') == 0 then return false end
  redis.call('PEXPIRE', 'palisade:settled', string.format('%.0f', b.settling - b.now_ms))
  redis.call('SET', lock, KEPT, 'PX', string.format('%.0f', b.apart))
  return true
end

-- Returns true if the first acquire of the lock, which is absent here, would find it kept.
local function is_to_be_kept(lock, fence)
  return b.settling and redis.call('EXISTS', fence) == 1
    and not redis.pcall('HMGET', 'palisade:settled', lock)[1]
end

-- Returns true if the key holds the readers of a lock (shared.lua).
local function are_readers(lock)
  local one = redis.pcall('ZRANGE', lock, '0', '0')[1]
  return one and is_owner(one) and redis.call('PTTL', lock) >= 0
end

-- Returns true if a lock's value is palisade's: an owner, a value in its place, or the readers.
local function is_ours(lock, value)
  if type(value) == 'string' then return is_owner(value) end
  return are_readers(lock)
end

-- Returns the value of a queue (its form is in wake.lua), or nothing if another program wrote it.
local function queued(queue)
  local v = look(queue, '3120') or '0'
  return type(v) == 'string' and #v % 48 == 1 and find(v, '^[01]') and v
end

-- Publishes a hint to the clients that watch the lock, because its metadata have changed.
local function hint(queue, key)
  local v = queued(queue)
  if v and sub(v, 1, 1) == '1' then
    if v == '1' then call('DEL', queue) else call('SET', queue, '0' .. sub(v, 2), 'KEEPTTL') end
    try('PUBLISH', 'palisade:changed', key)
  end
end

-- Ms for which a place is fresh after the last request of its handle.
local FRESH = 3000

-- Returns the time until which the place that begins here is fresh: at most FRESH ms from now, even
-- if this clock has stepped back since the handle asked; 0 if another program wrote the time.
local function fresh_till(v, at)
  local till = sub(v, at + 35, at + 47)
  return find(till, '%D') and 0 or math.min(tonumber(till), b.now_ms + FRESH)
end

-- Returns the standing of a fair waiter in the queue (fair 1 to 3): its ticket on this server, the
-- number of fresh fair places ahead of it, and the ms until none of these places is fresh any more.
-- `ticket` is the ticket of the call, or '' if the call asks for one.
local function standing(queue, handle, ticket)
  local v, own, largest, ahead, last = queued(queue) or '0', tonumber(ticket), 0, 0, now_ms
  for at = 2, #v, 48 do
    local fresh = fresh_till(v, at)
    local since, who = tonumber(sub(v, at, at + 15)) or 0, sub(v, at + 17, at + 32)
    if sub(v, at + 16, at + 16) == 'X' and fresh > now_ms and not is_ahead(since) then
      largest = math.max(largest, since)
      if who ~= handle and (not own or since < own or since == own and who < handle) then
        ahead, last = ahead + 1, math.max(last, fresh)
      end
    end
  end
  local here = own or math.max(b.now_us, largest + 1)
  return digits(math.min(here, 2 ^ 53)), ahead, last - now_ms
end

-- Removes the place of a fair waiter from the queue.
local function give_up(queue, handle)
  local v = queued(queue)
  local own = v and find(v, 'X' .. handle, 1, true)
  if own then
    v = sub(v, 1, own - 17) .. sub(v, own + 32)
    if v == '0' then call('DEL', queue) else call('SET', queue, v, 'KEEPTTL') end
  end
end

-- Registers a client for a hint. With a `handle` it is a waiter: it gets a place in the queue by
-- the time that it has waited (in µs) or by its `ticket`, and a released lock is reserved for it
-- for `needs` ms, at most 50; `mode` is x, s or X (wake.lua); `known` is the number of slots that a
-- waiter for a permit knows. Returns true if it has a place. Without a handle it is a watcher. The
-- queue is kept for `ms`, but at most for an hour, even if another program's lock lasts longer,
-- because clients ask again long before. It has 64 places; further handles ask again.
-- Also records in the marker until when a client waits on this server. That time is later than
-- needed, so that the marker is seldom written.
local function wait_for_hint(queue, ms, waited, handle, needs, mode, known, ticket)
  local v = queued(queue)
  if not v then return end
  local at = 2
  if handle then
    local since = ticket or b.now_us - math.min(tonumber(waited), 3600000000)
    since = string.format('%016.0f', since)
    local own = find(v, '[xsX]' .. handle)
    if own then v = sub(v, 1, own - 17) .. sub(v, own + 32) end
    -- Readers and fair waiters that do not ask any more would in time leave no place for others.
    local now = string.format('%013.0f', b.now_ms)
    local latest = string.format('%013.0f', b.now_ms + FRESH)
    while at < #v do
      local till = sub(v, at + 35, at + 47)
      if till <= now and sub(v, at + 16, at + 16) ~= 'x' then
        v = sub(v, 1, at - 1) .. sub(v, at + 48)
      else
        if till > latest and not find(till, '%D') then
          v = sub(v, 1, at + 34) .. latest .. sub(v, at + 48)
        end
        at = at + 48
      end
    end
    at = 2
    while at < #v and (sub(v, at, at + 15) < since
      or sub(v, at, at + 15) == since and (not ticket or sub(v, at + 17, at + 32) < handle)) do
      at = at + 48
    end
    needs = string.format('%02.0f', math.min(tonumber(needs), 50))
    local fresh = known and string.format('%013.0f', known) or latest
    v = sub(sub(v, 1, at - 1) .. since .. mode .. handle .. needs .. fresh .. sub(v, at), 1, 3073)
  else
    v = '1' .. sub(v, 2)
  end
  -- The expiry of the queue is never moved to an earlier time, because other waiters keep their
  -- places until then.
  ms = math.max(math.min(ms, 3600000), call('PTTL', queue))
  call('SET', queue, v, 'PX', ms)
  if b.waited < b.now_ms + ms then
    b.waited = b.now_ms + ms + 10000
    b.marker = sub(b.marker, 1, 96) .. string.format('%013.0f', b.waited) .. sub(b.marker, 110)
    call('SET', KEYS[1], b.marker)
    out[2] = b.marker
  end
  return at < 3073
end

-- Returns true if the key may hold a holder's metadata: a string with an expiry, unlike most keys
-- of other programs.
local function is_meta(meta)
  return type(redis.pcall('GETRANGE', meta, '0', '0')) == 'string'
    and redis.call('PTTL', meta) >= 0
end
