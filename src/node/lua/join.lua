-- Registers a client for a hint that a lock is free: a waiter, or a watcher. A waiter gets a place
-- (wake.lua) in place of any other that it has, if one of the 64 is free; others ask again. Also
-- records in the note, if there is one, until when a client waits here: later than needed, so that
-- it is seldom written. No upvalues (helpers.lua).
-- ARGV     behind `a`: 1 mode of the place, or v of a watcher  2 its handle, in 16 hex digits
--          3 µs for which it has waited; of a fair waiter its ticket, or '' if it asks for one
--          4 ms, at most 50, for which a released lock is reserved for it  5 number of slots that a
--          waiter for a permit knows, else ''
--          Parameters: `b`: batch.lua; `lock`, `queue`: keys
-- Returns  nothing
local function join(b, lock, queue, a)
  local call, sub, find, form = redis.call, string.sub, string.find, string.format
  local ARGV, fresh_for = ARGV, 3000
  local v = redis.pcall('GETRANGE', queue, '0', '3120')
  if v == '' and call('EXISTS', queue) == 0 then v = '0' end
  if v.err and not find(v.err, 'WRONGTYPE', 1, true) then call('GETRANGE', queue, '0', '3120') end
  if v.err or #v % 48 ~= 1 or not find(v, '^[01]') then return end -- another program's
  local mode, handle, since = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  if mode == 'v' then
    v = '1' .. sub(v, 2)
  else
    local own = find(v, '[xsX]' .. handle)
    local now, latest = form('%013.0f', b.now_ms), form('%013.0f', b.now_ms + fresh_for)
    local ticket = b.now_us
    local at = 2
    while at < #v do
      local till, kind = sub(v, at + 35, at + 47), sub(v, at + 16, at + 16)
      local began = tonumber(sub(v, at, at + 15)) or 0
      -- Readers and fair waiters that have stopped asking go, so that others find a place.
      if till <= now and kind ~= 'x' then
        if own and own > at then own = own > at + 47 and own - 48 end
        v = sub(v, 1, at - 1) .. sub(v, at + 48)
      else
        -- Even if this clock has stepped back.
        if till > latest and not find(till, '%D') then
          v = sub(v, 1, at + 34) .. latest .. sub(v, at + 48)
        end
        if kind == 'X' and began <= b.now_us + 6 * b.clock_error + 1000000 then
          ticket = math.max(ticket, began + 1)
        end
        at = at + 48
      end
    end
    if own then v = sub(v, 1, own - 17) .. sub(v, own + 32) end
    if mode ~= 'X' then
      since = b.now_us - math.min(tonumber(since), 3600000000)
    elseif since == '' then
      since = ticket
    end
    since, at = form('%016.0f', math.min(since, 2 ^ 53)), 2
    while at < #v and (sub(v, at, at + 15) < since
      or sub(v, at, at + 15) == since and (mode ~= 'X' or sub(v, at + 17, at + 32) < handle)) do
      at = at + 48
    end
    local needs = form('%02.0f', math.min(tonumber(ARGV[a + 4]), 50))
    local known = ARGV[a + 5] == '' and latest or form('%013.0f', ARGV[a + 5])
    v = sub(sub(v, 1, at - 1) .. since .. mode .. handle .. needs .. known .. sub(v, at), 1, 3073)
  end
  -- Never to an earlier time: other waiters keep their places until then.
  local left = call('PTTL', lock)
  local ms = math.max(left >= 0 and left + 1000 or 10000, mode == 'X' and fresh_for or 0)
  ms = math.max(math.min(ms, 3600000), call('PTTL', queue))
  call('SET', queue, v, 'PX', ms)
  if b.waited < b.now_ms + ms and #b.note == 67 then
    b.waited = b.now_ms + ms + 10000
    b.note = sub(b.note, 1, 54) .. form('%013.0f', b.waited)
    call('SET', KEYS[2], b.note)
    b.out[2] = b.note
  end
end
