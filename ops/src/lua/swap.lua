-- Writes a marker, if the one that was judged is still there and the server has not renamed its
-- data since.
-- KEYS     1 palisade:generation   2 palisade:settled
-- ARGV     1 the marker that was judged, or ''   2 the marker to write   3 master_replid then
--          4 '1' to begin anew which names are kept after a planned handover
-- Returns  {'ok', ''} | {'changed', why}: nothing was written | {'no', why}
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then return {'no', 'it is a replica'} end
if string.match(info, 'master_replid:(%x+)') ~= ARGV[3]
  or (redis.call('MGET', KEYS[1])[1] or '') ~= ARGV[1] then
  return {'changed', 'its marker was changed at this moment: run the command again'}
end
-- With two writes, the append-only file contains this change as a transaction, like each grant of a
-- lock. Some servers skip transactions while they load that file. Such a server then skips this
-- marker, too. So it never loads it together with data that lack grants.
redis.call('SET', KEYS[1], ARGV[2])
redis.call('SET', KEYS[1], ARGV[2])
if ARGV[4] == '1' then redis.call('DEL', KEYS[2]) end
return {'ok', ''}
