-- Helpers of the slow paths of ops on locks.
-- KEYS, ARGV  as for the op
-- Returns     see the comment of each function

local sub = string.sub

-- Value of a free lock that other owners do not get for a time after a planned handover (is_kept).
-- As long as an owner token.
local KEPT = '----------------------'
-- Value of a free lock that is reserved for woken readers (wake.lua).
local READERS = '------r---------------'

-- KEPT and the values of reserved locks have the form of an owner token, too.
local function is_owner(text)
  return #text == 22 and not find(text, '[^%w_-]')
end

-- The free lock is kept (KEPT) or reserved (wake.lua). No owner token begins with six dashes.
local function is_ownerless(value)
  return type(value) == 'string' and find(value, '^%-%-%-%-%-%-[%-%xr]') and #value == 22
end

-- The fence: 0 if absent, nil if another program wrote it. Below 1e18, so that an answer can
-- represent it.
local function stored(key)
  local v = look(key, '18')
  if not v then return 0 end
  local number = type(v) == 'string' and string.find(v, '^%d+$') and tonumber(v)
  return number and number < 1e18 and number or nil
end

-- Lowered to `most` if no correct clock can have given it: those give fences up to `most`, and up
-- to 2E above it before a backward step of this clock. A larger one is of another program, or of a
-- client with a wrong clock. Clients count a grant with the lowered fence once their own clocks
-- have advanced enough.
local function honest(number)
  local most = b.now_us + 6 * b.clock_error + 1000000
  return number > most + 2 * b.clock_error and most or number
end

-- Time in ms until which a free lock may still be held, and the same if an acquire has noted it.
-- Soon after a planned handover a lease may have ended too early by this clock, so a name that was
-- used lately (its fence exists) is kept for as long as two clocks may differ (quarantine 11).
local function kept_till(lock, fence)
  if not b.settling or redis.call('EXISTS', fence) == 0 then return 0 end
  local noted = tonumber(read('HMGET', 'palisade:settled', lock)[1] or nil)
  return noted or b.now_ms + b.apart, noted
end

-- Sets the lock to KEPT and returns true if its key is absent and it may still be held. The first
-- acquire of a name notes until when, in a key of its own: one of several readers may put itself
-- back, which removes KEPT, and leave while others still read (readers 8).
local function is_kept(lock, fence)
  if redis.call('EXISTS', lock) == 1 then return false end
  local till, noted = kept_till(lock, fence)
  if till <= b.now_ms then return false end
  if not noted then
    redis.call('PEXPIRE', 'palisade:none', '1') -- who may not do that leaves no note without an end
    redis.pcall('HSET', 'palisade:settled', lock, string.format('%.0f', till))
    redis.call('PEXPIRE', 'palisade:settled', string.format('%.0f', b.settling - b.now_ms))
  end
  redis.call('SET', lock, KEPT, 'PX', string.format('%.0f', till - b.now_ms))
  return true
end

-- Never shortens it: other owners may have longer leases than this client's (locks 5).
local function fence_life(fence)
  return math.max(tonumber(b.fence_life), redis.call('PTTL', fence))
end

-- Sets the fence, or with `token` nil only prolongs its life.
local function keep_fence(fence, token)
  if token then
    redis.call('SET', fence, token, 'PX', fence_life(fence))
  else
    redis.call('PEXPIRE', fence, fence_life(fence))
  end
end

local function are_readers(lock)
  local one = read('ZRANGE', lock, '0', '0')[1]
  return one and is_owner(one) and redis.call('PTTL', lock) >= 0
end

-- An owner token, a value in its place, or a set of readers.
local function is_ours(lock, value)
  if type(value) == 'string' then return is_owner(value) end
  return are_readers(lock)
end
