-- Closes a master for a planned handover: it then refuses all requests of palisade.
-- node/lua/quarantine.lua describes the marker's form.
-- KEYS  1 palisade:generation, the marker
-- ARGV  1 time for which the server is closed, in ms
-- Returns  {'ok', the marker as it is now} | {'no', why}
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return {'no', 'it is a replica'}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local marker = redis.call('GET', KEYS[1])
if not marker or string.sub(marker, 1, 40) ~= string.match(info, 'master_replid:(%x+)') then
  return {'no', 'its marker is missing or belongs to an earlier data history: run '
    .. '`palisade init --new` on a new deployment, or let an application connect first'}
end
local since, q = tonumber(string.sub(marker, 42, 54)), tonumber(string.sub(marker, 73, 81))
if since > 0 and now < since + q then
  return {'no', 'it is in quarantine for another ' .. since + q - now
    .. ' ms, because earlier leases may last until then: try again after it'}
end
local kind = string.sub(marker, 113, 113)
if kind ~= '-' then
  local left = tonumber(string.sub(marker, 114, 126)) - now
  if left > 0 and kind == 'c' then
    return {'no', 'it is closed by another handover for at most ' .. left .. ' ms: try again then'}
  end
  -- The states closed and settling are stored in the same field of the marker (the key with the
  -- server's data history). If the server were closed again, it would no longer have the record
  -- that leases may last longer than its clock shows (settling).
  if left > 0 then
    return {'no', 'it is still settling after another handover: try again in ' .. left .. ' ms'}
  end
end
marker = string.sub(marker, 1, 112)
  .. string.format('c%013.0f', now + tonumber(ARGV[1])) .. string.sub(marker, 127)
-- With two writes, the append-only file contains this change as a transaction, like each grant of a
-- lock. Some servers skip transactions while they load that file. Such a server then skips the
-- closed marker, too. So it never loads this marker together with data that lack grants.
redis.call('SET', KEYS[1], marker)
redis.call('SET', KEYS[1], marker)
return {'ok', marker}
