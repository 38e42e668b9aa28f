-- Runs once per batch, before the ops. Executes none of them unless the server's marker is the one
-- under which the client judged that they may run (node/lineage.rs): then the server's data are
-- those that the client used. Else it answers what the client needs to judge again.
-- KEYS[1]  palisade:generation, the marker
-- KEYS[2]  palisade:note: `history generation` as in the marker, the number of the last write that
--          counts (from 25, 12 digits), its time in µs (38, 16 digits), and until when a client may
--          wait for a hint, in ms (55, 13 digits)
-- ARGV     1 the marker that has to be there; '' if the client expects none
--          2, 3 first and last time of a range of this server's clock, in µs, in which the fast
--          paths hold: no quarantine runs, the batch is not late, each proposal is in range
--          4 numbers, separated by one space; batch.lua names each of them
--          5 '', or the marker to write in the place of ARGV[1]; ARGV[6] is then the data history
--          (master_replid) in which the client judged
-- Leaves   time, now_us (the clock in µs), marker, note, counted (the note if it was written),
--          expected (true in the range, unless the memory is full), full (true if the server's
--          memory is full and the marker or the note was written)
-- Ops do not catch the errors of their writes, or their next write is not caught. (wake.lua may
-- leave a waiter as it was.) If the server refuses writes (NOREPLICAS, READONLY, MISCONF), the
-- first write fails, so the server refuses the whole batch and nothing takes effect. Reads catch
-- the error of a key of another program (WRONGTYPE), which fails one op and not the batch, and no
-- other error (`read` in helpers.lua; the fast paths leave the op to the slow ones). The SET … GET
-- with which an acquire sets the fence uses `try`, too: the server has
-- accepted the write of the lock before it, and if it fails, the op undoes the grant.
-- These names are local, because Lua looks up a global by its name at each use.
local KEYS, ARGV, call, find, sub = KEYS, ARGV, redis.call, string.find, string.sub

local info = call('INFO', 'replication')
-- A replica would answer ops that only read, too, but with old data.
if not find(info, 'role:master', 1, true) then
  return redis.error_reply("READONLY You can't use locks on a replica.")
end
if find(ARGV[4], '0', 1, true) ~= 1 then
  -- Redis counts the good replicas once a second and refuses writes by the last count. A server
  -- that was frozen would execute what is in its buffers before the next. So the script counts by
  -- the lags in INFO, which are up to date.
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
-- A key that holds no string counts as none. An error is the batch's: what could not be read is not
-- missing.
local got = call('MGET', KEYS[1], KEYS[2])
local marker, note = got[1] or '', got[2] or ''
-- None of ours is so long, or has other characters.
if marker ~= ARGV[1] and (#marker > 1000 or find(marker, '[^%w %-]')) then marker = 'x' end
local seq, counts = sub(ARGV[4], -14, -3), sub(ARGV[4], -1)
local id = sub(marker, 4, 26)
local is_own = sub(note, 1, 23) == id
local is_old = counts ~= '0' and not (is_own and sub(note, 38, 47) == time[1])
local at = find(info, 'master_replid:', 1, true) + 14
local replid = ARGV[5] == '' and sub(marker, 28, 67) or ARGV[6]
if marker ~= ARGV[1] or marker .. ARGV[5] == '' or find(info, replid, at, true) ~= at
  or seq ~= '000000000000' and not (is_own and sub(note, 25, 36) >= seq)
  -- The quarantine of a new marker runs from when it was judged (quarantine 1).
  or ARGV[5] ~= '' and now_us > 1000 * sub(ARGV[5], 245, 257) + 2000000
  -- INFO stats costs as much as a small batch, so it is read once a second (quarantine 21).
  or ARGV[5] == '' and is_old and sub(marker, 158, 169) < string.format('%012.0f',
    string.match(call('INFO', 'stats'), 'evicted_keys:(%d+)') or 0) then
  local stats, commands = call('INFO', 'stats'), call('INFO', 'commandstats')
  local function calls(name)
    return tonumber(string.match(commands, 'cmdstat_' .. name .. ':calls=(%d+)') or 0)
  end
  return {'news', now_us, marker, sub(note, 1, 67),
    sub(info, at, at + 39), string.match(stats, 'total_net_repl_input_bytes:(%d+)') or '',
    calls('replicaof') + calls('slaveof') + calls('failover'),
    find(commands, 'cmdstat_config|resetstat:', 1, true) or 0,
    string.match(stats, 'evicted_keys:(%d+)') or '0',
    -- Not that of the login: a proxy may keep a connection while the server starts anew.
    string.match(call('INFO', 'server'), 'run_id:(%x+)') or ''}
end
-- A server whose memory is full refuses a write that may need memory, but only if it is the first
-- write of a script. So one that changes nothing comes before the marker and the note. Any other
-- refusal is the batch's error.
local full
local function store(key, value)
  if redis.pcall('SET', key, value).err then
    full = true
    call('DEL', 'palisade:none')
    call('SET', key, value)
  end
end
local counted
if ARGV[5] ~= '' then
  store(KEYS[1], ARGV[5])
  id = sub(ARGV[5], 4, 26)
  is_own = sub(note, 1, 23) == id
end
local in_range = now_us >= tonumber(ARGV[2]) and now_us <= tonumber(ARGV[3])
if ARGV[5] ~= '' or counts == '2' or is_old then
  -- A note of a late batch would say that this server was the master until now (quarantine 16).
  local limit = in_range and 0 or tonumber(string.match(ARGV[4], '^%d+ %d+ %d+ %d+ (%d+)'))
  if limit == 0 or now_us <= limit then
    note = string.format('%s %012.0f %016.0f %s', id,
      (is_own and tonumber(sub(note, 25, 36)) or 0) + 1, now_us,
      #note == 67 and sub(note, 55, 67) or '0000000000000')
    store(KEYS[2], note)
    counted = note
  end
end
local expected = in_range and not full
