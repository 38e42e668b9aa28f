-- The queue of the handles that wait for a lock: reads it, adds and removes places, and registers
-- clients for a hint. wake.lua describes its form.
-- KEYS, ARGV  as for the op
-- Returns     see the comment of each function

-- False if another program wrote it.
local function queued(queue)
  local v = look(queue, '3120') or '0'
  return type(v) == 'string' and #v % 48 == 1 and find(v, '^[01]') and v
end

-- Ms after its client's last request for which a place keeps later waiters out.
local FRESH = 3000

-- In ms, of the waiter whose place begins at `at` of the queue `v`: at most FRESH from now, even if
-- this clock has stepped back since it asked; 0 if another program wrote it.
local function fresh_till(v, at)
  local till = sub(v, at + 35, at + 47)
  return find(till, '%D') and 0 or math.min(tonumber(till), b.now_ms + FRESH)
end

-- Of a fair waiter (fair 1 to 3): its ticket on this server, the number of fresh fair places ahead,
-- and the ms until none of these is fresh. `ticket` is the call's, or '' if it asks for one.
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

local function give_up(queue, handle)
  local v = queued(queue)
  local own = v and find(v, 'X' .. handle, 1, true)
  if own then
    v = sub(v, 1, own - 17) .. sub(v, own + 32)
    if v == '0' then call('DEL', queue) else call('SET', queue, v, 'KEEPTTL') end
  end
end

-- Registers a client for a hint that the lock is free: a waiter with a `handle`, or a watcher
-- without one. A waiter gets a place:
-- - ordered by the time for which it has `waited` (in µs), or by its `ticket`;
-- - with `mode` x, s or X (wake.lua);
-- - with `needs`: ms, at most 50, for which a released lock is reserved for it;
-- - with `known`: the number of slots that a waiter for a permit knows.
-- Returns true if it has one of the 64 places; others ask again. The queue is kept for `ms`, but at
-- most for an hour, even if another program's lock lasts longer. Also records in the note, if there
-- is one, until when a client waits here: later than needed, so that it is seldom written.
local function wait_for_hint(queue, ms, waited, handle, needs, mode, known, ticket)
  local v = queued(queue)
  if not v then return end
  local at = 2
  if handle then
    local since = ticket or b.now_us - math.min(tonumber(waited), 3600000000)
    since = string.format('%016.0f', since)
    local own = find(v, '[xsX]' .. handle)
    if own then v = sub(v, 1, own - 17) .. sub(v, own + 32) end
    -- Readers and fair waiters that have stopped asking go, so that others find a place.
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
  -- Never to an earlier time: other waiters keep their places until then.
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
