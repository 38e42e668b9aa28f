-- Runs once per batch: reads the clock and the generation, keeps the crash guard (DESIGN 5.5).
-- KEYS[1]  palisade:generation, the marker: "replid since_ms floor_us q_ms", further words ignored.
-- ARGV     1 q: quarantine in ms   2 E: clock error in µs   3 fence life in ms
--          4 trust a node without marker: 0 or 1            5 L: failover window in ms
--          6 number of ops
-- Leaves   now_us, now_ms, since, floor, left, window, q and the helpers below to the ops.
-- No op wraps a write in pcall: the first write of the script is refused (NOREPLICAS, READONLY,
-- MISCONF, OOM) before anything took effect, and so the whole batch is. Reads use `try`, so that a
-- stranger's key (WRONGTYPE) spoils one op and not the batch; the fence's SET … GET is such a read,
-- behind a first write that was accepted, and any failure of it takes the grant back.
-- Locals: a global is looked up by name each time, and these are used for every op.
local KEYS, ARGV, tonumber, type = KEYS, ARGV, tonumber, type
local call, try = redis.call, redis.pcall
local find, sub, format = string.find, string.sub, string.format
local q, clock_error, fence_life = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]

local info = call('INFO', 'replication')
-- Ops that only read would be answered by a replica too, with old data.
if not find(info, 'role:master', 1, true) then
  return redis.error_reply("READONLY You can't use locks on a replica.")
end
local at = find(info, 'master_replid:', 1, true)
local replid = sub(info, at + 14, at + 53)
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)

-- A whole number as Redis shall store it; %.14g, the default, would round it.
local function digits(x)
  return format('%.0f', x)
end

-- Milliseconds for which this process has certainly been up without running a script or losing its
-- data by command; nil if that cannot be shown. The running EVALSHA is not counted yet.
local function unused_for()
  local stats = call('INFO', 'commandstats')
  for _, name in ipairs({'eval','eval_ro', 'evalsha', 'evalsha_ro', 'fcall', 'fcall_ro', 'flushall',
      'flushdb', 'swapdb', 'debug', 'config', 'config|resetstat'}) do
    if find(stats, 'cmdstat_' .. name .. ':', 1, true) then return nil end
  end
  local up = tonumber(string.match(call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
  return up and (up - 1) * 1000 -- counted in whole seconds of the wall clock
end

local since, floor, new = nil, nil, 0 -- bits: 1 new, 2 there was no marker, 4 raised the length
local marker = try('GET', KEYS[1])
local seen, seen_since, seen_floor, seen_q
if type(marker) == 'string' then
  seen, seen_since, seen_floor, seen_q = string.match(marker, '^(%x+) (%d+) (%d+) (%d+)')
end
local write = false
if seen then -- all clients of a node use one length, the largest
  seen_q = tonumber(seen_q)
  if seen_q < q then
    write = true
    if seen_q > 0 then new = 4 end
  else
    q = seen_q
  end
end
if seen == replid then
  since, floor = tonumber(seen_since), tonumber(seen_floor)
else
  new, write = new + (marker and 1 or 3), true
  -- Twice: this clock may be behind by E, and the clock of who proposed ahead by E.
  since, floor = now_ms, now_us + 2 * clock_error
  -- No marker on a history without a predecessor: a new node, or one that lost everything.
  if marker == false and find(info, 'master_replid2:' .. string.rep('0', 40), 1, true) then
    if ARGV[4] == '1' then
      since, floor = 0, 0
    else
      -- What an earlier process granted has run out; its tokens and records may still matter, so
      -- the marker says what it would say if it had been written at the start.
      local up = unused_for()
      if up and up > q then
        since = now_ms - up
        floor = since * 1000 + 2 * clock_error
      end
    end
  end
end
if write then
  call('SET', KEYS[1],
    replid .. ' ' .. digits(since) .. ' ' .. digits(floor) .. ' ' .. digits(q))
end
local left = since + q - now_ms
if since == 0 or left < 0 then left = 0 end
local window = since + tonumber(ARGV[5]) - now_ms -- a replaced master may grant for so long
if since == 0 or window < 0 then window = 0 end

local out = {now_us, sub(replid, 1, 16), left, q, new}
local n = 5

local function put(x)
  n = n + 1
  out[n] = x
end

-- Results, one integer first; see main.lua.
local DONE, NOT_OWNER, ABSENT, QUARANTINED, HELD, FOREIGN, WRONG_TYPE = 1, 0, -1, -2, -3, -4, -5
local MISMATCH, COMPLETED, IN_FLIGHT = -6, -7, -8

-- Nothing is granted yet; the epoch names this quarantine to a holder that may put its own back.
local function put_quarantined()
  put(QUARANTINED)
  put(since)
end

-- Whether what is absent may be written anew: outside quarantine, or by a sitting holder (5.3).
local function may_recreate(epoch)
  return left <= 0 or tonumber(epoch) == since
end

-- Whether the owner's own that stands here for `ms` may be prolonged: in the failover window only
-- what a replaced master cannot see expire and give away before it stops, or what its holder knows
-- to last there.
local function may_prolong(ms, epoch)
  return ms >= window or tonumber(epoch) == since
end

-- The number in a fence key: 0 if there is none, nil if a stranger's value stands there.
local function stored(key)
  local v = try('GET', key)
  if not v then return 0 end
  return type(v) == 'string' and tonumber(v) or nil
end

-- A proposal as far as it counts: as any honest clock can go, and not below the floor.
local low, high = digits(math.max(now_us - clock_error, floor)), digits(now_us + clock_error)
local function in_range(p)
  if #p == #low and #p == #high and p >= low and p <= high then return p end
  local n = math.max(math.min(tonumber(p), now_us + clock_error), now_us - clock_error, floor)
  return digits(n)
end

-- The next fence above `old`.
local function next_fence(old, proposal)
  return math.max(tonumber(in_range(proposal)), old + 1)
end

-- Tells waiters, if there are any. A hint may be lost, so a missing permission to publish is no
-- fault of the op. What another program keeps under that key is left alone.
local function hint(queue, key)
  if try('GET', queue) == '1' then
    call('DEL', queue)
    try('PUBLISH', 'palisade:changed', key)
  end
end

-- Asks for a hint.
local function wait_for_hint(queue, ms)
  local v = try('GET', queue)
  if not v or v == '1' then call('SET', queue, '1', 'PX', ms) end
end

-- Whether a holder's words may stand here: text that expires, unlike most keys of others.
local function is_words(meta)
  return type(try('GET', meta)) == 'string' and call('PTTL', meta) >= 0
end

-- A claim's fields, or nil for a stranger's key:
-- 1 own  2 fence  3 till (lease end, ms)  4 att  5 rf (record's ballot)  6 val  7 g  8 fp
-- g is the marker's `since` at the last promise.
local function record(key)
  local h = try('HMGET', key, 'own', 'fence', 'till', 'att', 'rf', 'val', 'g', 'fp')
  if h.err then
    put(WRONG_TYPE)
    return nil
  end
  return h
end

-- The ballot below which nothing is accepted. A promise of an earlier generation may have been lost
-- with newer ones, which were all below the floor.
local function promised(h)
  local fence = tonumber(h[2]) or 0
  if floor > fence and tonumber(h[7]) ~= since then return floor end
  return fence
end

local function put_completed(h)
  put(COMPLETED)
  put(tonumber(h[5]))
  put(h[6] or '')
end
