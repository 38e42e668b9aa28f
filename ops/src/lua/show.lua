-- Reads what a server shows of its data: its marker and note, the name that it gives to its data,
-- and the counters that tell whether it has followed another server. Changes nothing.
-- KEYS     1 palisade:generation   2 palisade:note
-- ARGV     none
-- Returns  {'ok', time in us, marker, note, master_replid, first 16 digits of run_id,
--          total_net_repl_input_bytes or '', calls of replicaof, slaveof and failover, 1 if the
--          counters were reset else 0, evicted_keys} | {'no', why}
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then return {'no', 'it is a replica'} end
local time, got = redis.call('TIME'), redis.call('MGET', KEYS[1], KEYS[2])
local stats, commands = redis.call('INFO', 'stats'), redis.call('INFO', 'commandstats')
local function calls(name)
  return tonumber(string.match(commands, 'cmdstat_' .. name .. ':calls=(%d+)') or 0)
end
return {'ok', string.format('%.0f', time[1] * 1000000 + time[2]), got[1] or '', got[2] or '',
  string.match(info, 'master_replid:(%x+)') or '',
  string.match(redis.call('INFO', 'server'), 'run_id:(%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x)') or '',
  string.match(stats, 'total_net_repl_input_bytes:(%d+)') or '',
  string.format('%.0f', calls('replicaof') + calls('slaveof') + calls('failover')),
  string.find(commands, 'cmdstat_config|resetstat:', 1, true) and '1' or '0',
  string.match(stats, 'evicted_keys:(%d+)') or '0'}
