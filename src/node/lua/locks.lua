-- What the rare ops on locks share.
-- KEYS, ARGV  as handed in by the op
-- Returns     per function what its comment says

-- The value of a lock that is free, while it is kept for its holder; as long as
-- an owner.
local KEPT = '----------------------'

-- The number in a fence key: 0 if there is none, nil if it is another program's value: a fence is
-- a whole number that an answer can tell.
local function stored(key)
  local v = look(key, '18')
  if not v then return 0 end
  local number = type(v) == 'string' and string.find(v, '^%d+$') and tonumber(v)
  return number and number < 1e18 and number or nil
end

-- Tells waiters, if there are any. A hint may be lost, so a missing permission to publish is no
-- fault of the op. What another program keeps under that key is left alone.
local function hint(queue, key)
  if redis.pcall('GETRANGE', queue, '0', '1') == '1' then
    redis.call('DEL', queue)
    redis.pcall('PUBLISH', 'palisade:changed', key)
  end
end

-- Asks for a hint, and has the marker say that somebody does: ahead, so that it is seldom written.
-- For an hour at most, however long another program's lock lasts: waiters ask again long before.
local function wait_for_hint(queue, ms)
  local v = look(queue, '1')
  if v and v ~= '1' then return end
  ms = math.min(ms, 3600000)
  redis.call('SET', queue, '1', 'PX', ms)
  if b.waited < b.now_ms + ms then
    b.waited = b.now_ms + ms + 10000
    b.marker = string.sub(b.marker, 1, 96) .. string.format('%013.0f', b.waited)
      .. string.sub(b.marker, 110)
    redis.call('SET', KEYS[1], b.marker)
    out[2] = b.marker
  end
end

-- Whether this may be a holder's metadata: text that expires, unlike most keys of others.
local function is_words(meta)
  return type(redis.pcall('GETRANGE', meta, '0', '0')) == 'string'
    and redis.call('PTTL', meta) >= 0
end
