-- Runs once per batch: reads the clock, the role and the data history, and keeps the marker that
-- says since when this server's data are complete.
-- KEYS[1]  palisade:generation, the marker, each field of fixed width, one space between:
--          1 replid 40   42 since_ms 13   56 floor_us 16   73 q_ms 9   83 agreed_ms 13
--          97 waited_ms 13   111 how the history began: n known data, e empty
--          since: when it began (0: this server never lost anything); q: the quarantine's length;
--          agreed: until when that length holds although nobody asks for it; waited: until when
--          somebody may wait for a hint.
--          Around a planned handover (`ops/handover`) it is longer: 113 c or s, 114 until_ms 13.
--          c: closed, by whoever hands the server over: until then nothing at all is answered by
--          it, nor by a server that its data come to. s: handed over: these data are complete, so
--          the history goes on from the one before; only leases given there may end early by this
--          clock, by twice E, until then.
-- ARGV     1 q: quarantine in ms, by all that is known of the group
--          2 q where a history begins, with what may be unknown of the group
--          3 E: clock error in µs            4 fence life in ms
--          5 trust a server without marker: 0 or 1
--          6 L in ms: for so long a replaced server may have gone on
--          7 not after: the server's own clock in µs after which nothing takes effect; 0 none
--          8 good replicas needed            9 oldest acknowledgement of a good one, in seconds
--          10 number of runs and single ops
-- Leaves   now_us, now_ms, since, floor, left, late, q and a few helpers to the ops. Whatever only
--          rare ops need stands in `rare`: each function that is made costs every batch.
-- No op wraps a write in pcall: the first write of the script is refused (NOREPLICAS, READONLY,
-- MISCONF, OOM) before anything took effect, and so the whole batch is. Reads use `try`, so that a
-- stranger's key (WRONGTYPE) spoils one op and not the batch; the fence's SET … GET is such a read,
-- behind a first write that was accepted, and any failure of it takes the grant back.
-- Locals: a global is looked up by name each time, and these are used for every op.
local KEYS, ARGV, tonumber, type, unpack = KEYS, ARGV, tonumber, type, unpack
local call, try = redis.call, redis.pcall
local find, sub, format = string.find, string.sub, string.format
local q, clock_error, fence_life = tonumber(ARGV[1]), tonumber(ARGV[3]), ARGV[4]

local info = call('INFO', 'replication')
-- Ops that only read would be answered by a replica too, with old data.
if not find(info, 'role:master', 1, true) then
  return redis.error_reply("READONLY You can't use locks on a replica.")
end
local needed = tonumber(ARGV[8])
if needed > 0 then
  -- Redis refuses by a number that it counts once a second: a server that was frozen would grant
  -- what lay in its buffers before it counts again. The ages in INFO are right.
  local good, oldest = 0, tonumber(ARGV[9])
  for lag in string.gmatch(info, 'slave%d+:[^\r\n]*state=online,[^\r\n]*lag=(%d+)') do
    if tonumber(lag) <= oldest then good = good + 1 end
  end
  if good < needed then
    return redis.error_reply('NOREPLICAS ' .. good .. ' of ' .. needed
      .. ' replicas acknowledged within ' .. ARGV[9] .. ' s.')
  end
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

local since, floor, agreed, waited, began, settling
local bits, write = 0, false -- bits: see main.lua
local marker = try('GET', KEYS[1])
local seen_q
if type(marker) == 'string' and (#marker == 111 or #marker == 126) then
  since, floor = tonumber(sub(marker, 42, 54)), tonumber(sub(marker, 56, 71))
  seen_q, agreed = tonumber(sub(marker, 73, 81)), tonumber(sub(marker, 83, 95))
  waited, began = tonumber(sub(marker, 97, 109)), sub(marker, 111, 111)
end
local known = since and floor and seen_q and agreed and waited -- else it is not ours
if known and #marker == 126 then
  local kind, till = sub(marker, 113, 113), tonumber(sub(marker, 114, 126))
  if till and now_ms < till then
    if kind == 'c' then
      return redis.error_reply('HANDOVER closed for another ' .. till - now_ms .. ' ms at most.')
    end
    if sub(marker, 1, 40) == replid then settling = till end
  end
  write = not settling
end
if known and sub(marker, 1, 40) == replid then
  -- All clients share one length, the longest. It holds for one length after the last client that
  -- asked for it, and is not shortened during a quarantine.
  if q > seen_q then
    write, agreed = true, now_ms + 2 * q
    if seen_q > 0 then bits = 4 end
  elseif q == seen_q then
    if now_ms + q > agreed then write, agreed = true, now_ms + 2 * q end
  elseif now_ms > agreed and now_ms >= since + seen_q then
    write, agreed = true, now_ms + 2 * q
  else
    q = seen_q
  end
else
  write, bits, began = true, known and 1 or 3, known and 'n' or 'e'
  if marker == false and ARGV[5] == '1' then
    since, floor, began = 0, 0, 'n'
  else
    -- What the marker says may be older than the server that was replaced just now.
    q = math.max(q, tonumber(ARGV[2]), known and seen_q or 0)
    -- Twice E: this clock may be behind, and the clock of who proposed ahead. And q: a server that
    -- this one replaced goes on granting for a part of it.
    since, floor = now_ms, now_us + 2 * clock_error + q * 1000
  end
  agreed, waited = now_ms + 2 * q, known and waited or 0
end
local function mark()
  call('SET', KEYS[1], format('%s %013.0f %016.0f %09.0f %013.0f %013.0f %s',
    replid, since, floor, q, agreed, waited, began)
    .. (settling and format(' s%013.0f', settling) or ''))
end
if write then mark() end
local left = since + q - now_ms
if since == 0 or left < 0 then left = 0 end
local late = tonumber(ARGV[7])
late = late > 0 and now_us > late

if find(info, 'repl_backlog_active:1', at, true) then bits = bits + 8 end
if waited > now_ms then bits = bits + 16 end
if began == 'e' then bits = bits + 32 end

local out = {now_us, sub(replid, 1, 16), left, q, bits, since}
local n = 6

local function put(x)
  n = n + 1
  out[n] = x
end

-- Results, one integer first; see main.lua.
local DONE, NOT_OWNER, ABSENT, QUARANTINED, HELD, FOREIGN, WRONG_TYPE = 1, 0, -1, -2, -3, -4, -5
local MISMATCH, COMPLETED, IN_FLIGHT, AS_ASKED, LATE, TOO_OLD = -6, -7, -8, -9, -10, -11
local DEFERRED = -12

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
