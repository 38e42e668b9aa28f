-- Changes records of idempotency keys that are still as they were read. The ballot of a record
-- stays, so that it refuses late requests. Its owner is removed, so that no attempt that is under
-- way takes effect.
-- KEYS     1 palisade:generation, the marker (node/lua/history.lua), then records
-- ARGV     1 the change: release, rerun or purge   2 1: purge also records without a result
--          then for each record the ballot that was read, or '' for no record
-- Returns  a word for each record: done | as it is | none | changed | running | settling | stored |
--          unfinished | foreign | closed
local what, time = ARGV[1], redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local marker = redis.call('GET', KEYS[1]) or ''
-- While the server is closed for a planned handover, nothing is changed. While it is settling after
-- a handover, a lease may run for twice E (the largest clock error) after its end by this clock. E
-- is not known here, so the length of a quarantine, which is longer than twice E, takes its place.
local kind, till = string.match(marker, '^ ([cs])(%d+) ', 112)
if kind and now >= tonumber(till) then kind = nil end
local longer = kind == 's' and tonumber(string.sub(marker, 73, 81)) or 0

local function change(key, ballot)
  if kind == 'c' then return 'closed' end
  -- An error would end the script after some keys were changed, so another program's value must not
  -- cause one.
  local h = redis.pcall('HMGET', key, 'fence', 'till', 'att', 'rf')
  if h.err then return 'foreign' end
  if (h[1] or '') ~= ballot then return 'changed' end
  if not h[1] then return 'none' end
  local ends, stored = tonumber(h[2]) or 0, tonumber(h[4])
  local settles = ends > 0 and ends <= now and ends + longer > now
  local runs = ends > now or settles
  if what == 'release' then
    if stored then return 'stored' end
    if not runs then return 'as it is' end
    redis.call('HSET', key, 'own', '', 'till', '0')
    return 'done'
  end
  if runs and not stored then return settles and 'settling' or 'running' end
  if what == 'rerun' then
    if stored then return 'stored' end
    redis.call('HSET', key, 'own', '', 'till', '0', 'att', '0')
    return tonumber(h[3]) == 0 and 'as it is' or 'done'
  end
  if not stored and ARGV[2] ~= '1' then return 'unfinished' end
  redis.call('HSET', key, 'own', '', 'till', '0', 'att', '0')
  redis.call('HDEL', key, 'rf', 'val', 'fp')
  return 'done'
end

local out = {}
for i = 2, #KEYS do out[i - 1] = change(KEYS[i], ARGV[i + 1]) end
return out
