-- The queue of the handles (clients) that wait for a lock: reads it, adds and removes places, and
-- registers clients for a hint (wake-up message). wake.lua describes its form.
-- KEYS, ARGV  as for the op
-- Returns     see the comment of each function

-- Returns the value of the key with a lock's queue (wake.lua describes the value's form); false if
-- another program wrote it.
local function queued(queue)
  local v = look(queue, '3120') or '0'
  return type(v) == 'string' and #v % 48 == 1 and find(v, '^[01]') and v
end

-- Publishes a hint (wake-up message) to the clients that watch the lock, because its metadata have
-- changed.
local function hint(queue, key)
  local v = queued(queue)
  if v and sub(v, 1, 1) == '1' then
    if v == '1' then call('DEL', queue) else call('SET', queue, '0' .. sub(v, 2), 'KEEPTTL') end
    try('PUBLISH', 'palisade:changed', key)
  end
end

-- Ms for which a place in the queue of waiters is fresh after the last request of its client. A
-- place that is not fresh keeps no later waiter out.
local FRESH = 3000

-- Returns the time in ms until which a waiter counts as fresh (it asked lately). Its place begins
-- at the index `at` of the queue `v`. The time is at most FRESH from now, even if this server's
-- clock has stepped back since the waiter's client asked; 0 if another program wrote the time.
local function fresh_till(v, at)
  local till = sub(v, at + 35, at + 47)
  return find(till, '%D') and 0 or math.min(tonumber(till), b.now_ms + FRESH)
end

-- Returns three values about a fair waiter (rules fair 1 to 3 in docs/design). Fair waiters get the
-- lock in the order of their tickets. The values are its ticket on this server, the number of fair
-- places ahead of it that are fresh (their handles asked in the last FRESH ms), and the ms until
-- none of these places is fresh any more. `ticket` is the ticket of the call, or '' if the call
-- asks for one.
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

-- Removes the place of a fair waiter from the queue of a lock.
local function give_up(queue, handle)
  local v = queued(queue)
  local own = v and find(v, 'X' .. handle, 1, true)
  if own then
    v = sub(v, 1, own - 17) .. sub(v, own + 32)
    if v == '0' then call('DEL', queue) else call('SET', queue, v, 'KEEPTTL') end
  end
end

-- Registers a client for a hint that the lock is free. The client is a waiter with a `handle`, or a
-- watcher without one. A waiter gets a place in the queue:
-- - ordered by the time for which it has `waited` (in µs), or by its `ticket`;
-- - with `mode` x, s or X (wake.lua);
-- - with `needs`: ms, at most 50, for which a released lock is reserved for it;
-- - with `known`: the number of slots that a waiter for a permit knows.
-- Returns true if the waiter has a place. The queue has 64 places; further handles have none, and
-- ask again. The queue is kept for `ms`, but at most for an hour, even if another program's lock
-- lasts longer, because clients ask again long before. Also records in the note, if there is one,
-- until when a client waits on this server. That time is later than needed, so that it is seldom
-- written here.
local function wait_for_hint(queue, ms, waited, handle, needs, mode, known, ticket)
  local v = queued(queue)
  if not v then return end
  local at = 2
  if handle then
    local since = ticket or b.now_us - math.min(tonumber(waited), 3600000000)
    since = string.format('%016.0f', since)
    local own = find(v, '[xsX]' .. handle)
    if own then v = sub(v, 1, own - 17) .. sub(v, own + 32) end
    -- Removes readers and fair waiters that have stopped asking, because such waiters would in time
    -- fill the queue, so that others find no place in it.
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
  if b.waited < b.now_ms + ms and #b.note == 67 then
    b.waited = b.now_ms + ms + 10000
    b.note = sub(b.note, 1, 54) .. string.format('%013.0f', b.waited)
    call('SET', KEYS[2], b.note)
    out[2] = b.note
  end
  return at < 3073
end
