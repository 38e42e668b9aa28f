-- Runs once per batch: reads the role, the data history, the clock and the marker, which tells
-- since when this server's data are complete. If all is as the client expects, nothing else is
-- created or read; otherwise history.lua runs.
-- KEYS[1]  palisade:generation, the marker
-- ARGV     1 the marker as the client saw it last, empty if it saw none
--          2, 3 times of this server's clock, in µs and both included, between which a batch
--          that finds this marker in this history has nothing to check: the marker is plausible
--          and needs no change, no quarantine runs, the batch is not late, each proposal is in
--          range
--          4 further facts from the client, numbers separated by one space: see batch.lua
-- Leaves   now_us, info, at (offset of the history in info), marker, expected to main.lua
-- No op wraps a write in pcall: the first write of the script is refused (NOREPLICAS, READONLY,
-- MISCONF, OOM) before anything took effect, so the whole batch is refused. Reads use `try`, so
-- that a key of another program (WRONGTYPE) fails one op and not the batch. The fence's SET … GET
-- counts as such a read: it comes after a first write that was accepted, and if it fails the grant
-- is undone.
-- Locals, because a global is looked up by name each time.
local KEYS, ARGV, call, find = KEYS, ARGV, redis.call, string.find

local info = call('INFO', 'replication')
-- A replica would answer read-only ops too, with old data.
if not find(info, 'role:master', 1, true) then
  return redis.error_reply("READONLY You can't use locks on a replica.")
end
if find(ARGV[4], '0', 1, true) ~= 1 then
  -- Redis refuses by a count that it updates once a second: a server that was frozen would execute
  -- the batches in its buffers before the next update. The lags in INFO are up to date.
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
-- At most one byte more than our longest marker, however large the value is. The numbers are
-- strings, because Lua would format its own numbers each time.
local marker = redis.pcall('GETRANGE', KEYS[1], '0', '476')
local at = find(info, 'master_replid:', 1, true) + 14
local expected = marker == ARGV[1] and marker ~= ''
  and now_us >= tonumber(ARGV[2]) and now_us <= tonumber(ARGV[3])
  and find(info, string.sub(marker, 1, 40), at, true) == at
