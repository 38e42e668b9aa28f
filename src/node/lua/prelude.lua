-- Runs once per batch: reads the clock and the generation, keeps the crash guard (DESIGN 5.5).
-- KEYS[1]  palisade:generation, the marker: "replid since_ms floor_us q_ms waited_ms", the last
--          word only once somebody waited: until when somebody may. Further words are ignored.
-- ARGV     1 q: quarantine in ms   2 E: clock error in µs   3 fence life in ms
--          4 trust a node without marker: 0 or 1            5 L: failover window in ms
--          6 number of runs and single ops
-- Leaves   now_us, now_ms, since, floor, left, window, q and a few helpers to the ops. Whatever
--          only rare ops need stands in `rare`: each function that is made costs every batch.
-- No op wraps a write in pcall: the first write of the script is refused (NOREPLICAS, READONLY,
-- MISCONF, OOM) before anything took effect, and so the whole batch is. Reads use `try`, so that a
-- stranger's key (WRONGTYPE) spoils one op and not the batch; the fence's SET … GET is such a read,
-- behind a first write that was accepted, and any failure of it takes the grant back.
-- Locals: a global is looked up by name each time, and these are used for every op.
local KEYS, ARGV, tonumber, type, unpack = KEYS, ARGV, tonumber, type, unpack
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

local since, floor, new = nil, nil, 0 -- bits: see main.lua
local marker = try('GET', KEYS[1])
local seen, seen_since, seen_floor, seen_q, seen_waited
if type(marker) == 'string' then
  seen, seen_since, seen_floor, seen_q, seen_waited =
    string.match(marker, '^(%x+) (%d+) (%d+) (%d+) ?(%d*)')
end
-- A time in ms has 13 digits; anything else is another's word.
local waited = seen and #seen_waited == 13 and tonumber(seen_waited) or 0
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
      -- Milliseconds for which this process has certainly been up without running a script or
      -- losing its data by command; nil if that cannot be shown. The running EVALSHA is not
      -- counted yet.
      local function unused_for()
        local stats = call('INFO', 'commandstats')
        for _, name in ipairs({'eval', 'eval_ro', 'evalsha', 'evalsha_ro', 'fcall', 'fcall_ro',
            'flushall', 'flushdb', 'swapdb', 'debug', 'config', 'config|resetstat'}) do
          if find(stats, 'cmdstat_' .. name .. ':', 1, true) then return nil end
        end
        local up = tonumber(string.match(call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
        return up and (up - 1) * 1000 -- counted in whole seconds of the wall clock
      end
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
local function mark()
  call('SET', KEYS[1], replid .. ' ' .. digits(since) .. ' ' .. digits(floor) .. ' ' .. digits(q)
    .. (waited > 0 and ' ' .. digits(waited) or ''))
end
if write then mark() end
local left = since + q - now_ms
if since == 0 or left < 0 then left = 0 end
local window = since + tonumber(ARGV[5]) - now_ms -- a replaced master may grant for so long
if since == 0 or window < 0 then window = 0 end

if find(info, 'repl_backlog_active:1', at, true) then new = new + 8 end
if waited > now_ms then new = new + 16 end

local out = {now_us, sub(replid, 1, 16), left, q, new}
local n = 5

local function put(x)
  n = n + 1
  out[n] = x
end

-- Results, one integer first; see main.lua.
local DONE, NOT_OWNER, ABSENT, QUARANTINED, HELD, FOREIGN, WRONG_TYPE = 1, 0, -1, -2, -3, -4, -5
local MISMATCH, COMPLETED, IN_FLIGHT, AS_ASKED = -6, -7, -8, -9

-- Nothing is granted yet; the epoch names this quarantine to a holder that may put its own back.
local function put_quarantined()
  put(QUARANTINED)
  put(since)
end

-- A proposal as far as it counts: as any honest clock can go, and not below the floor.
local low, high = math.max(now_us - clock_error, floor), now_us + clock_error
local function in_range(p)
  local x = tonumber(p)
  if x >= low and x <= high then return p end
  return digits(math.max(math.min(x, now_us + clock_error), low))
end

-- What stands in `rare`, made when it is first needed.
local rare, made
local function rarely()
  made = made or rare()
  return made
end
