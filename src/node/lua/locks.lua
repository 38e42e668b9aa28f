-- Helpers of the slow paths of ops on locks.
-- KEYS, ARGV  as for the op
-- Returns     see the comment of each function

local sub = string.sub

-- Value of a lock that is free but kept for its possible holder after a handover (refuse.lua). It
-- has the length of an owner.
local KEPT = '----------------------'

-- Returns true if a value belongs to no owner: the lock is kept, or reserved for a waiter
-- (release.lua). No owner token begins like that.
local function is_ownerless(value)
  return type(value) == 'string' and find(value, '^%-%-%-%-%-%-[%-%x]') and #value == 22
end

-- Returns the number in a fence key: 0 if there is none, nil if it is another program's value. A
-- fence is a whole number that an answer can represent.
local function stored(key)
  local v = look(key, '18')
  if not v then return 0 end
  local number = type(v) == 'string' and string.find(v, '^%d+$') and tonumber(v)
  return number and number < 1e18 and number or nil
end

-- Returns the value of a queue (see release.lua); nothing if it is another program's.
local function queued(queue)
  local v = look(queue, '2275') or '0'
  return type(v) == 'string' and #v % 35 == 1 and find(v, '^[01]') and v
end

-- Publishes a hint to those who watch, because the metadata are new.
local function hint(queue, key)
  local v = queued(queue)
  if v and sub(v, 1, 1) == '1' then
    if v == '1' then call('DEL', queue) else call('SETRANGE', queue, '0', '0') end
    try('PUBLISH', 'palisade:changed', key)
  end
end

-- Registers for a hint: a waiter, with its place and the ms for which the lock is then reserved for
-- it (at most 50), or a watcher. Records in the marker that there is one, until a time further
-- ahead than needed, so that the marker is seldom written. For an hour at most, even if another
-- program's lock lasts longer: waiters ask again long before. There are 64 places; the other
-- handles ask again.
local function wait_for_hint(queue, ms, waited, handle, needs)
  local v = queued(queue)
  if not v then return end
  if handle then
    local since = string.format('%016.0f', b.now_us - math.min(tonumber(waited), 3600000000))
    local own = find(v, ':' .. handle, 1, true)
    if own then v = sub(v, 1, own - 17) .. sub(v, own + 19) end
    local at = 2
    while at < #v and sub(v, at, at + 15) <= since do at = at + 35 end
    needs = string.format('%02.0f', math.min(tonumber(needs), 50))
    v = sub(sub(v, 1, at - 1) .. since .. ':' .. handle .. needs .. sub(v, at), 1, 2241)
  else
    v = '1' .. sub(v, 2)
  end
  ms = math.min(ms, 3600000)
  call('SET', queue, v, 'PX', ms)
  if b.waited < b.now_ms + ms then
    b.waited = b.now_ms + ms + 10000
    b.marker = sub(b.marker, 1, 96) .. string.format('%013.0f', b.waited) .. sub(b.marker, 110)
    call('SET', KEYS[1], b.marker)
    out[2] = b.marker
  end
end

-- Returns true if this may be a holder's metadata: text that expires, unlike most other keys.
local function is_meta(meta)
  return type(redis.pcall('GETRANGE', meta, '0', '0')) == 'string'
    and redis.call('PTTL', meta) >= 0
end
