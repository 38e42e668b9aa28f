-- Runs once per batch, before the ops. Reads the role, the data history (master_replid), the clock
-- and the marker of the server. The marker contains the time since which this server's data are
-- complete. If these values are as the client expects, the script reads nothing else about the
-- server, and each op may take its fast path. Otherwise quarantine.lua checks the marker first.
-- KEYS[1]  palisade:generation, the marker
-- ARGV     1 the marker that the client saw last, or '' if it has seen none
--          2, 3 first and last time of a range of this server's clock, in µs. If the clock is in
--          this range, and the marker and the data history are as expected, the batch needs no
--          checks: the marker is plausible and needs no change, no quarantine runs, the batch is
--          not late, and each proposed fencing token is in the range that is allowed
--          4 ten numbers from the client, separated by one space; batch.lua explains each of them
-- Leaves   variables that main.lua uses: time (reply to TIME), now_us (the clock in µs), info
--          (reply to INFO), at (position in info of the data history's name), marker (value of the
--          marker), expected (true if marker, data history and clock are as the client expects)
-- Ops do not catch the errors of their writes, or their next write is not caught. (wake.lua may
-- leave a waiter as it was.) If the server refuses writes (NOREPLICAS, READONLY, MISCONF, OOM), the
-- first write fails, so the server refuses the whole batch and nothing takes effect. Reads use
-- `try` (pcall), so that a key of another program (WRONGTYPE) fails one op and not the batch. The
-- SET … GET with which an acquire sets the fence uses `try`, too: the server has accepted the write
-- of the lock before it, and if the SET … GET fails, the op undoes the grant.
-- These names are local, because Lua looks up a global by its name at each use.
local KEYS, ARGV, call, find = KEYS, ARGV, redis.call, string.find

local info = call('INFO', 'replication')
-- A replica would answer ops that only read, too, but with old data.
if not find(info, 'role:master', 1, true) then
  return redis.error_reply("READONLY You can't use locks on a replica.")
end
if find(ARGV[4], '0', 1, true) ~= 1 then
  -- Redis counts the good replicas (those that have acknowledged lately) once a second and refuses
  -- writes by the last count. A server that was frozen would execute the batches in its buffers
  -- before the next count. So the script counts the replicas by the lags in INFO, which are up to
  -- date.
  local needed, oldest = string.match(ARGV[4], '^(%d+) (%d+)')
  local good = 0
  for lag in string.gmatch(info, 'slave%d+:[^\r\n]*state=online,[^\r\n]*lag=(%d+)') do
    if tonumber(lag) <= tonumber(oldest) then good = good + 1 end
  end
  if good < tonumber(needed) then
    return redis.error_reply('NOREPLICAS ' .. good .. ' of ' .. needed
      .. ' replicas acknowledged within ' .. oldest .. ' s.')
  end
end
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- Reads at most one byte more than our longest marker (the value with the facts about the data
-- history), even if the value is larger. '0' and '476' are strings, because Lua would format
-- numbers at each call.
local marker = redis.pcall('GETRANGE', KEYS[1], '0', '476')
local at = find(info, 'master_replid:', 1, true) + 14
local expected = marker == ARGV[1] and marker ~= ''
  and now_us >= tonumber(ARGV[2]) and now_us <= tonumber(ARGV[3])
  and find(info, string.sub(marker, 1, 40), at, true) == at
