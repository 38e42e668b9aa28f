-- Helpers of the slow paths. One call handles one op, or a run of acquires or releases in which
-- some ops were not executed as requested. Functions have as few upvalues as possible: each closure
-- and each upvalue adds a tenth of a small command's time to an op.
-- KEYS, ARGV  those of the op begin after k and a
-- Returns     see the comment of each function
local KEYS, ARGV, call, try, find = KEYS, ARGV, redis.call, redis.pcall, string.find
local now_ms, left = b.now_ms, b.left
if not count then a = a + 1 end -- a single op's ARGV follow its kind; for runs see main.lua

local out = b.out
local function put(x)
  out[#out + 1] = x
end

-- Formats a whole number for storage. The default format, %.14g, would round large numbers.
local function digits(x)
  return string.format('%.0f', x)
end

-- Returns the proposal, limited to the range from the clock minus E to the clock plus E. The result
-- is never below the floor.
local function in_range(p)
  local x = tonumber(p)
  local low, high = math.max(b.now_us - b.clock_error, b.floor), b.now_us + b.clock_error
  if x >= low and x <= high then return p end
  return string.format('%.0f', math.max(math.min(x, high), low))
end

-- Returns true if an extension is allowed. Outside a quarantine it is always allowed. In a
-- quarantine it is allowed only if the holder names this quarantine.
local function may_extend(named)
  return b.left <= 0 or named == b.id
end

-- Returns true if a token is too far ahead of this clock. Correct clocks and servers can produce
-- tokens that are ahead by at most 6E; one more second is for rounding.
local function is_ahead(token)
  return token > b.now_us + 6 * b.clock_error + 1000000
end

-- Returns the value of a key; false if the key does not exist. Reads at most one byte more than our
-- longest value. So a large value of another program delays neither the server nor the answer.
local function look(key, longest)
  local v = redis.pcall('GETRANGE', key, '0', longest)
  if v == '' and redis.call('EXISTS', key) == 0 then return false end
  return v
end

-- Largest number of bytes of results and metadata in one answer. The limit keeps the transfer time
-- and the memory use small. The first result is returned even if it is longer.
local MOST = 1048576

-- Returns true if the answer has room for `size` more bytes. If not, puts DEFERRED. The op calls
-- this function before it changes anything.
local function has_room(size)
  local room = b.room or MOST
  if room <= 0 or size > room and room < MOST then
    b.room = 0 -- defers all later results, too, so that this op is not overtaken for ever
    put(DEFERRED)
    return false
  end
  b.room = room - size
  return true
end
