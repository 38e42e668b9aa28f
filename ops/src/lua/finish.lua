-- Opens the new master of a planned handover, so that it answers batches. Does so only if its data
-- contain the marker by which close.lua closed the old master (made it refuse batches). The data
-- then contain every write before the closing, and the server has answered no batch since the
-- closing.
-- KEYS  1 palisade:generation, the marker   2 palisade:settled
-- ARGV  1 the marker that close.lua wrote   2 twice E (the largest clock error) in ms
-- Returns  {'ok', beginning of the data history in ms}, also if an earlier run opened the server
--          and its answer was lost
--          {'changed', why}: neither close.lua nor this script wrote the marker, or the server is
--          no master, so the result of an earlier run is unknown
--          {'no', why}
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return {'changed', 'it is a replica'}
end
local marker, replid = ARGV[1], string.match(info, 'master_replid:(%x+)')
if replid == string.sub(marker, 1, 40) then
  return {'no', 'it is still the server that was closed'}
end
local now_marker = redis.call('GET', KEYS[1]) or ''
if now_marker ~= marker then
  -- These fields of the marker show that an earlier run of this script opened the server. Clients
  -- may have changed the other fields since that run.
  if string.sub(now_marker, 1, 40) == replid and string.sub(now_marker, 113, 113) == 's'
    and string.sub(now_marker, 41, 71) == string.sub(marker, 41, 71) then
    return {'ok', string.sub(marker, 42, 54)}
  end
  return {'changed', 'its data do not hold the closing: writes are missing, or it was used since'}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Every server whose data contain the mark (the marker that close.lua wrote) is closed, and opens
-- by itself when the end time in this mark is over by its own clock. Another server of the group
-- may do so up to twice E (the largest clock error) before this server's clock shows the end. So
-- this server must not open later than twice E before the end.
if now + tonumber(ARGV[2]) > tonumber(string.sub(marker, 114, 126)) then
  return {'no', 'the handover took longer than the time for which the server was closed'}
end
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[1], replid .. string.sub(marker, 41, 112)
  .. string.format('s%013.0f', now + tonumber(string.sub(marker, 73, 81)))
  .. string.sub(marker, 127))
return {'ok', string.sub(marker, 42, 54)}
