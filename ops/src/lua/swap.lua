-- Writes a marker, if the one that was judged is still there, the server has not renamed its data
-- since, and its clock has not gone on too far.
-- KEYS     1 palisade:generation   2 palisade:settled   3 in a slot of a cluster palisade:stays
-- ARGV     1 the marker that was judged, or ''   2 the marker to write   3 master_replid then
--          4 '1' to let a planned handover go on: begins anew which names are kept after it
--          5 last time of the server's clock at which the marker may be written, in ms
-- Returns  {'ok', ''} | {'changed', why}: nothing was written | {'no', why}
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then return {'no', 'it is a replica'} end
if string.match(info, 'master_replid:(%x+)') ~= ARGV[3]
  or (redis.call('MGET', KEYS[1])[1] or '') ~= ARGV[1] then
  return {'changed', 'its marker was changed at this moment: run the command again'}
end
local time = redis.call('TIME')
if time[1] * 1000 + time[2] / 1000 > tonumber(ARGV[5]) then
  if ARGV[4] == '1' then
    return {'no', 'the handover took longer than the time for which the server was closed'}
  end
  return {'changed', 'it answered so late that it has to be looked at again: run the command again'}
end
-- With two writes, the append-only file contains this change as a transaction, like each grant. A
-- server that skips transactions while it loads that file skips this marker, too.
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[1], ARGV[2])
if ARGV[4] == '1' then redis.call('DEL', KEYS[2]) end
if KEYS[3] then
  redis.call('DEL', KEYS[3])
  redis.call('SETRANGE', KEYS[3], '1', '1')
end
return {'ok', ''}
