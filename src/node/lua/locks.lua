-- Helpers of the slow paths of ops on locks.
-- KEYS, ARGV  as for the op
-- Returns     see the comment of each function

local sub = string.sub

-- KEPT and the values of reserved locks have the form of an owner token, too.
local function is_owner(text)
  return #text == 22 and not find(text, '[^%w_-]')
end

-- The free lock is kept (KEPT) or reserved (wake.lua). No owner token begins with six dashes.
local function is_ownerless(value)
  return type(value) == 'string' and find(value, '^%-%-%-%-%-%-[%-%xr]') and #value == 22
end

-- Lowered to `most` if no correct clock can have given it: those give fences up to `most`, and up
-- to 2E above it before a backward step of this clock. A larger one is of another program, or of a
-- client with a wrong clock. Clients count a grant with the lowered fence once their own clocks
-- have advanced enough.
local function honest(number)
  local most = b.now_us + 6 * b.clock_error + 1000000
  return number > most + 2 * b.clock_error and most or number
end
