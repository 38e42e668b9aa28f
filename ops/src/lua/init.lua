-- Marks a server as new: data from before its data history no longer count as lost. In the marker
-- the letter e (the data began empty) or l (empty, although a client has a record of earlier data)
-- becomes n. A server on which nothing was ever granted, because it is unused or its clients are in
-- the first quarantine, gets the marker of a server that never lost anything. On any other server
-- the quarantine, the floor and later losses stay as they are. With l an operator has to declare
-- that all earlier data are gone for good (ARGV 2). Leases granted on those data may still be held,
-- so a quarantine never ends early then.
-- KEYS 1 palisade:generation
-- ARGV 1 'look' or 'mark'   2 '1' to mark a server with l, too
-- Returns {'ok', time when its data began in ms; empty if nothing was granted yet}
--  | {'marked', note}: nothing has to be done | {'lost', why} | {'no', why}
--  | {'changed', why}: the server cannot be marked now
-- The caller examines the keys of the server.
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return {'no', 'it is a replica'}
end
local replid = string.match(info, 'master_replid:(%x+)')
local marker = redis.call('GET', KEYS[1])
local sub = string.sub
local began = marker and sub(marker, 111, 111)
if marker and began ~= 'e' and began ~= 'l' then
  return {'marked', 'it was initialised or used before'}
end
if began == 'l' and ARGV[2] ~= '1' then
  return {'lost', 'a program that saw its data before found them gone'}
end
if ARGV[2] == '1' and not marker then
  return {'changed', 'no program has connected to it yet: let one connect, and run this again'}
end
local used = ''
if marker then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local since, q = tonumber(sub(marker, 42, 54)), tonumber(sub(marker, 73, 81))
  if sub(marker, 1, 40) ~= replid or sub(marker, 113, 113) ~= '-' or not since then
    return {'changed', 'it was restarted or replaced, and no program has connected to it since: '
      .. 'let one connect, and run this again'}
  end
  -- Nothing was granted in the first quarantine of a new server. If other nodes have data, leases
  -- that this server lost may still be held.
  if ARGV[2] == '1' or #marker ~= 182 or now >= since + q then
    used = sub(marker, 156, 168) -- when the data after the first loss began
  end
end
if ARGV[1] == 'look' then return {'ok', used} end
if used ~= '' then
  -- The first loss, which is that of all earlier data, is removed.
  redis.call('SET', KEYS[1], sub(marker, 1, 110) .. 'n' .. sub(marker, 112, 140)
    .. sub(marker, 183))
else
  local never = string.format('%013d %016d %09d %013d %013d n -%013d %013d', 0, 0, 0, 0, 0, 0, 0)
  redis.call('SET', KEYS[1], replid .. ' ' .. never)
end
return {'ok', used}
