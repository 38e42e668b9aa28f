-- Marks a server on which nothing was ever granted: it is unused, or its clients found no marker
-- and are still in the first quarantine. The caller checks whether it has keys. KEYS 1
-- palisade:generation ARGV 1 'look' or 'mark' Returns {'ok', replid} |
-- {'marked', note} where nothing has to be done | {'no', why}
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return {'no', 'it is a replica'}
end
local replid = string.match(info, 'master_replid:(%x+)')
local marker = redis.call('GET', KEYS[1])
if marker then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local since, q = tonumber(string.sub(marker, 42, 54)), tonumber(string.sub(marker, 73, 81))
  local began_here = string.sub(marker, 1, 40) == replid and string.sub(marker, 111, 111) == 'e'
  if not (began_here and since and q) then
    return {'marked', 'it was initialised or used before'}
  end
  if now >= since + q then
    return {'marked', 'its first quarantine is over, so it already grants; only keys without '
      .. 'created_at may count as forgotten for one retention'}
  end
end
if ARGV[1] == 'look' then return {'ok', replid} end
local never = string.format('%013d %016d %09d %013d %013d n -%013d %013d', 0, 0, 0, 0, 0, 0, 0)
redis.call('SET', KEYS[1], replid .. ' ' .. never)
return {'ok', replid}
