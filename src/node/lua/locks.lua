-- Helpers of the slow paths (cases that no fast path handles) of ops on locks.
-- KEYS, ARGV  as for the op
-- Returns     see the comment of each function

local sub = string.sub

-- Value of a lock that is free, but that other owners do not get for a time after a planned
-- handover, because its last lease may have ended too early (is_kept). It is as long as an owner
-- token.
local KEPT = '----------------------'
-- Value of a free lock that is reserved for the readers that were woken (wake.lua).
local READERS = '------r---------------'

-- Returns true if a text has the form of an owner token. KEPT (the value of a lock that is kept
-- after a planned handover) and the values of reserved locks have this form, too.
local function is_owner(text)
  return #text == 22 and not find(text, '[^%w_-]')
end

-- Returns true if a lock's value is no owner token, but says that the free lock is kept from other
-- owners after a planned handover (KEPT) or reserved for waiters (wake.lua). No owner token begins
-- with six dashes.
local function is_ownerless(value)
  return type(value) == 'string' and find(value, '^%-%-%-%-%-%-[%-%xr]') and #value == 22
end

-- Returns the number in a fence key (last fencing token of a lock): 0 if the key is absent, nil if
-- another program wrote its value. A fence is a whole number below 1e18, so that an answer can
-- represent it.
local function stored(key)
  local v = look(key, '18')
  if not v then return 0 end
  local number = type(v) == 'string' and string.find(v, '^%d+$') and tonumber(v)
  return number and number < 1e18 and number or nil
end

-- Returns the fence `number`, lowered to `most` if no correct clock can have given it. With E as
-- the largest clock error, correct clocks give fences up to `most`, and up to 2E above `most`
-- before a backward step of this clock. A larger fence was written by another program, or by a
-- client with a wrong clock. Clients do not count a grant with the lowered fence at once, but do so
-- when their own clocks have advanced enough.
local function honest(number)
  local most = b.now_us + 6 * b.clock_error + 1000000
  return number > most + 2 * b.clock_error and most or number
end

-- Returns true if the lock, whose key is absent, may still be held. Soon after a planned handover
-- its lease may have ended too early by this server's clock. So the first acquire of a name that
-- was used lately (its fence exists) sets the lock to KEPT for as long as two clocks may differ.
-- Later acquires do not set it again.
local function is_kept(lock, fence)
  if redis.call('EXISTS', lock) == 1 or redis.call('EXISTS', fence) == 0 then return false end
  if redis.pcall('HSET', 'palisade:settled', lock, '1') == 0 then return false end
  redis.call('PEXPIRE', 'palisade:settled', string.format('%.0f', b.settling - b.now_ms))
  redis.call('SET', lock, KEPT, 'PX', string.format('%.0f', b.apart))
  return true
end

-- Returns true if the lock, whose key is absent, may still be held soon after a planned handover
-- (`is_kept` would return true). Changes nothing.
local function is_to_be_kept(lock, fence)
  return b.settling and redis.call('EXISTS', fence) == 1
    and not redis.pcall('HMGET', 'palisade:settled', lock)[1]
end

-- Returns true if the key holds the readers of a lock (shared.lua).
local function are_readers(lock)
  local one = redis.pcall('ZRANGE', lock, '0', '0')[1]
  return one and is_owner(one) and redis.call('PTTL', lock) >= 0
end

-- Returns true if the value at a lock's key was written by this library: an owner token, a value in
-- its place (KEPT, or that of a lock reserved for waiters), or a set of readers.
local function is_ours(lock, value)
  if type(value) == 'string' then return is_owner(value) end
  return are_readers(lock)
end

-- Returns true if the key may hold a holder's metadata: a string with an expiry, unlike most keys
-- of other programs.
local function is_meta(meta)
  return type(redis.pcall('GETRANGE', meta, '0', '0')) == 'string'
    and redis.call('PTTL', meta) >= 0
end
