-- What the rare ops share. One call is one op, or a run of acquires or releases that is not all as
-- asked. Functions capture no variable that they can do without: each function that is made, and
-- each variable that one captures, costs every such op about a tenth of a small command.
-- KEYS, ARGV  the op's behind k and a
-- Returns     per function what its comment says
local KEYS, ARGV, call, try, find = KEYS, ARGV, redis.call, redis.pcall, string.find
local now_ms, left = b.now_ms, b.left
if not count then a = a + 1 end -- behind the kind; of a run acquire.lua and release.lua say it

-- Results, one integer first; see main.lua.
local DONE, NOT_OWNER, ABSENT, QUARANTINED, HELD, FOREIGN, WRONG_TYPE = 1, 0, -1, -2, -3, -4, -5
local MISMATCH, COMPLETED, IN_FLIGHT, LATE, TOO_OLD, DEFERRED = -6, -7, -8, -10, -11, -12

local out = b.out
local function put(x)
  out[#out + 1] = x
end

-- A whole number as it is stored; %.14g, the default, would round it.
local function digits(x)
  return string.format('%.0f', x)
end

-- A proposal as far as it counts: as any honest clock can go, and not below the floor.
local function in_range(p)
  local x = tonumber(p)
  local low, high = math.max(b.now_us - b.clock_error, b.floor), b.now_us + b.clock_error
  if x >= low and x <= high then return p end
  return string.format('%.0f', math.max(math.min(x, high), low))
end

-- Whether an extension counts: outside quarantine, or within it if its holder names it.
local function may_extend(named)
  return b.left <= 0 or named == b.id
end

-- Whether a token lies further ahead than honest clocks and servers can bring it: 6E, and a second
-- for what is rounded.
local function is_ahead(token)
  return token > b.now_us + 6 * b.clock_error + 1000000
end

-- The value of a key, false if it has none. Of a text not more than one byte beyond the
-- longest of ours, so that no value of another program's holds up the server or its answer.
local function look(key, longest)
  local v = redis.pcall('GETRANGE', key, '0', longest)
  if v == '' and redis.call('EXISTS', key) == 0 then return false end
  return v
end

-- How many bytes of results and metadata the answer may still show, so that it arrives in time and
-- neither side piles up memory for it. The first is shown whatever its length.
local MOST = 1048576

-- Whether so much more may be shown. If not, that is put, and nothing may have been changed.
local function has_room(size)
  local room = b.room or MOST
  if room <= 0 or size > room and room < MOST then
    b.room = 0 -- for all that follow, so that none is overtaken for ever
    put(DEFERRED)
    return false
  end
  b.room = room - size
  return true
end

-- Too late: it only takes back.
if b.late and not find('DQMu', kind, 1, true) then
  for _ = 1, count or 1 do put(LATE) end
  return
end
