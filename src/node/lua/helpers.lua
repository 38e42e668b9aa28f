-- Helpers of the slow paths of permits and lists, each of which runs once for one op. Each closure
-- and each upvalue adds a tenth of a small command's time to an op; the other functions are made
-- anew on every call of the script, so they have none.
-- KEYS, ARGV  keys of the op from KEYS[k + 1] on, arguments of a single op from ARGV[a + 1] on
-- Returns     see the comment of each function
local KEYS, ARGV, call, try, find = KEYS, ARGV, redis.call, redis.pcall, string.find
local now_ms, left = b.now_ms, b.left
a = a + 1 -- the ARGV of an op follow its kind

local out = b.out
local function put(x)
  out[#out + 1] = x
end

-- For storage: the default format, %.14g, would round large numbers.
local function digits(x)
  return string.format('%.0f', x)
end

-- The proposal, limited to this clock ± E, and never below the floor (quarantine 8).
local function in_range(p)
  local x = tonumber(p)
  local low, high = math.max(b.now_us - b.clock_error, b.floor), b.now_us + b.clock_error
  if x >= low and x <= high then return p end
  return string.format('%.0f', math.max(math.min(x, high), low))
end

-- In a quarantine, only if the holder named it.
local function may_extend(named)
  return b.left <= 0 or named == b.id
end

-- Correct clocks and servers produce tokens at most 6E ahead of this clock; one more second is for
-- rounding.
local function is_ahead(token)
  return token > b.now_us + 6 * b.clock_error + 1000000
end

-- Of a command that only reads, the reply is an error table only if the key holds another type. Any
-- other error is the batch's: what could not be read is not missing. The comment in the last line
-- is for the text of that error (`commands_at` in redis/script.rs).
local function read(...)
  local v = redis.pcall(...)
  if type(v) == 'table' and v.err and not string.find(v.err, 'WRONGTYPE', 1, true) then
    return redis.call(...) -- call('GETRANGE' call('HMGET' call('ZRANGE' call('ZSCORE'
  end
  return v
end

-- False if the key does not exist, an error table if it holds no string. `longest` is the length of
-- our longest value: at most one byte more is read, so a large value of another program delays
-- nobody.
local function look(key, longest)
  local v = read('GETRANGE', key, '0', longest)
  if v == '' and redis.call('EXISTS', key) == 0 then return false end
  return v
end

-- Bytes of results and metadata in one answer, which keeps transfer time and memory small. The
-- first result is returned even if it is longer.
local MOST = 1048576

-- If not, puts DEFERRED, so that the client sends the op again. Called before the op changes
-- anything.
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

-- A server whose memory is full refuses a write that may need memory, but only as the first of a
-- script. To extend, give back or complete needs next to none, so a write that changes nothing
-- comes first.
if find('YF', kind, 1, true) then call('DEL', 'palisade:none') end
