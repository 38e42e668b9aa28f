-- Runs once per batch: reads the role, the data history, the clock and the marker that says since
-- when this server's data are complete. Where all is as the client expects, nothing else is made or
-- looked at (history.lua says what happens otherwise).
-- KEYS[1]  palisade:generation, the marker
-- ARGV     1 the marker as the client saw it last, empty if it did not
--          2, 3 between which times of this server's clock, in µs and both included, a batch
--          that finds this marker in this history has nothing to check: the marker is plausible
--          and needs no change, no quarantine runs, the batch is not late, each proposal is in
--          range
--          4 what else the client knows, in numbers with one space between: see batch.lua
-- Leaves   now_us, info, at (of its history), marker, expected to main.lua
-- No op wraps a write in pcall: the first write of the script is refused (NOREPLICAS, READONLY,
-- MISCONF, OOM) before anything took effect, and so the whole batch is. Reads use `try`, so that a
-- stranger's key (WRONGTYPE) spoils one op and not the batch; the fence's SET … GET is such a read,
-- behind a first write that was accepted, and any failure of it takes the grant back.
-- Locals: a global is looked up by name each time.
local KEYS, ARGV, call, find = KEYS, ARGV, redis.call, string.find

local info = call('INFO', 'replication')
-- Ops that only read would be answered by a replica too, with old data.
if not find(info, 'role:master', 1, true) then
  return redis.error_reply("READONLY You can't use locks on a replica.")
end
if find(ARGV[4], '0', 1, true) ~= 1 then
  -- Redis refuses by a number that it counts once a second: a server that was frozen would grant
  -- what lay in its buffers before it counts again. The ages in INFO are right.
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
-- One more than the longest of ours, however large the value is. Numbers as text: Lua's own
-- are written out anew each time.
local marker = redis.pcall('GETRANGE', KEYS[1], '0', '476')
local at = find(info, 'master_replid:', 1, true) + 14
local expected = marker == ARGV[1] and marker ~= ''
  and now_us >= tonumber(ARGV[2]) and now_us <= tonumber(ARGV[3])
  and find(info, string.sub(marker, 1, 40), at, true) == at
