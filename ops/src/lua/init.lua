-- Marks a server as new, so that data from before its data history no longer count as lost. The
-- marker (KEYS 1, a record of the data history) has a letter for the beginning of the history. The
-- script changes the letter to n.
--   e  the data began empty
--   l  the data began empty, although a client has seen earlier data. An operator has to declare
--      that the earlier data are lost for ever (ARGV 2).
-- A server that has never granted anything (it is unused, or still in its first quarantine) gets
-- the marker of a server that lost nothing. That ends the quarantine, except for the letter l:
-- leases from the earlier data may still be held. On any other server the quarantine, the later
-- losses and the floor (the smallest fencing token) stay. The program that runs the script has
-- examined the other keys of the server.
-- KEYS 1 palisade:generation
-- ARGV 1 'look': report only what would be done; 'mark': do it
--      2 '1' to mark a server with the letter l, too
-- Returns {'ok', time when its data began in ms; empty if nothing was granted yet}
--  | {'marked', note}: nothing has to be done
--  | {'lost', why}: the letter is l, and ARGV 2 is not '1'
--  | {'no', why}: this server cannot be marked, for example a replica
--  | {'changed', why}: the server cannot be marked now
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
  -- A new server grants nothing in its first quarantine (time without grants), so its marker (the
  -- key `palisade:generation`) may be replaced as a whole. If ARGV 2 is '1', this server may have
  -- lost leases that are still held, so its quarantine stays.
  if ARGV[2] == '1' or #marker ~= 182 or now >= since + q then
    used = sub(marker, 156, 168) -- when the data after the first loss began
  end
end
if ARGV[1] == 'look' then return {'ok', used} end
if used ~= '' then
  -- The first entry in the marker's list of losses is removed. It is the loss of all earlier data.
  redis.call('SET', KEYS[1], sub(marker, 1, 110) .. 'n' .. sub(marker, 112, 140)
    .. sub(marker, 183))
else
  local never = string.format('%013d %016d %09d %013d %013d n -%013d %013d', 0, 0, 0, 0, 0, 0, 0)
  redis.call('SET', KEYS[1], replid .. ' ' .. never)
end
return {'ok', used}
