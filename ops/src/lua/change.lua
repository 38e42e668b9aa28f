-- Changes records of idempotency keys, if they were not changed since they were read. A record
-- keeps its ballot and loses its owner, so that the node refuses late requests of earlier attempts.
-- KEYS     1 palisade:generation, the marker, then records
-- ARGV     1 the change: release, rerun or purge   2 '1' to purge also records without a result
--          3 the server's time in ms after which the script changes nothing
--          then for each record the ballot that was read, or '' for no record
-- Returns  a word for each record: done | as it is | none | changed | running | settling | stored |
--          unfinished | foreign | closed | late | broken | stopped
--          (`said` in records/change.rs has a sentence for each word)
local what, time = ARGV[1], read('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local marker = read('GET', KEYS[1]) or ''
if marker.err then return marker end
-- While the server is closed for a planned handover, the script changes nothing. While the server
-- is settling after a handover, a lease may last for twice E (the largest clock error) longer than
-- the server's clock shows. The script has no value of E. So the script uses the length of a
-- quarantine, which is longer than twice E.
local kind, till = string.match(marker, '^ ([cs])(%d+) ', 229)
if kind and now >= tonumber(till) then kind = nil end
local longer = kind == 's' and tonumber(string.sub(marker, 201, 209)) or 0

-- If the first write is refused, nothing was changed, and the script fails. After a later refusal
-- this record may be changed in part (`broken`), and no further one is changed.
local wrote, broken = false, false
local function write(...)
  if not wrote then
    redis.call(...)
    wrote = true
  elseif not broken then
    local reply = redis.pcall(...)
    broken = type(reply) == 'table' and reply.err ~= nil
  end
end

local function change(key, h, ballot)
  if broken then return 'stopped' end
  if now > tonumber(ARGV[3]) then return 'late' end
  if kind == 'c' then return 'closed' end
  if h.err then return 'foreign' end
  if (h[1] or '') ~= ballot then return 'changed' end
  if not h[1] then return 'none' end
  local ends, stored = tonumber(h[2]) or 0, tonumber(h[4])
  local settles = ends > 0 and ends <= now and ends + longer > now
  local runs = ends > now or settles
  if what == 'release' then
    if stored then return 'stored' end
    if not runs then return 'as it is' end
    write('HSET', key, 'own', '', 'till', '0')
    return broken and 'broken' or 'done'
  end
  if runs and not stored then return settles and 'settling' or 'running' end
  if what == 'rerun' then
    if stored then return 'stored' end
    write('HSET', key, 'own', '', 'till', '0', 'att', '0')
    return broken and 'broken' or tonumber(h[3]) == 0 and 'as it is' or 'done'
  end
  if not stored and ARGV[2] ~= '1' then return 'unfinished' end
  write('HSET', key, 'own', '', 'till', '0', 'att', '0')
  write('HDEL', key, 'rf', 'val', 'fp')
  return broken and 'broken' or 'done'
end

-- All reads come before the first write: an error of the script itself would hide which keys are
-- changed.
local records, out = {}, {}
for i = 2, #KEYS do records[i] = read('HMGET', KEYS[i], 'fence', 'till', 'att', 'rf') end
for i = 2, #KEYS do out[i - 1] = change(KEYS[i], records[i], ARGV[i + 2]) end
return out
