-- Marks a server on which nothing was ever granted.
-- KEYS  1 palisade:generation
-- ARGV  none
-- Returns  {'ok', replid} | {'no', why}
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return {'no', 'it is a replica'}
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  return {'no', 'the marker ' .. KEYS[1] .. ' was written just now: somebody uses this server'}
end
local replid = string.match(info, 'master_replid:(%x+)')
local never = string.format('%013d %016d %09d %013d %013d n', 0, 0, 0, 0, 0)
redis.call('SET', KEYS[1], replid .. ' ' .. never)
return {'ok', replid}
