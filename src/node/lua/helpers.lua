-- Helpers of the slow paths. The slow path runs once for one op, or once for a run of acquires or
-- releases in which the fast path did not execute every op as requested. Functions have as few
-- upvalues as possible: each closure and each upvalue adds a tenth of a small command's time to an
-- op.
-- KEYS, ARGV  keys of the op from KEYS[k + 1] on, arguments of a single op from ARGV[a + 1] on
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

-- Returns the proposed fencing token, limited to this clock ± E (the largest clock error). The
-- result is never below the floor: no token of this data history may be below it.
local function in_range(p)
  local x = tonumber(p)
  local low, high = math.max(b.now_us - b.clock_error, b.floor), b.now_us + b.clock_error
  if x >= low and x <= high then return p end
  return string.format('%.0f', math.max(math.min(x, high), low))
end

-- Returns true if the extension of a lease is allowed. Outside a quarantine (a time after a
-- possible loss of data) it is always allowed. In a quarantine it is allowed only if `named`, the
-- name that the holder sent, is the name of this quarantine.
local function may_extend(named)
  return b.left <= 0 or named == b.id
end

-- Returns true if a fencing token is too far ahead of this clock. Correct clocks and servers can
-- produce tokens that are ahead by at most 6E, where E is the largest clock error; one more second
-- is for rounding.
local function is_ahead(token)
  return token > b.now_us + 6 * b.clock_error + 1000000
end

-- Runs a command that only reads. Its reply is an error table only if the key holds a value of
-- another type. Any other error, as that of a missing right, is the error of the batch: what could
-- not be read is not missing. The comment in its last line is for the text of that error
-- (`commands_at` in redis/script.rs).
local function read(...)
  local v = redis.pcall(...)
  if type(v) == 'table' and v.err and not string.find(v.err, 'WRONGTYPE', 1, true) then
    return redis.call(...) -- call('GETRANGE' call('HMGET' call('ZRANGE' call('ZSCORE'
  end
  return v
end

-- Returns the value of a key: false if the key does not exist, an error table if it holds no
-- string. `longest` is the length of our longest value. At most one byte more is read, so a large
-- value of another program delays neither the server nor the answer.
local function look(key, longest)
  local v = read('GETRANGE', key, '0', longest)
  if v == '' and redis.call('EXISTS', key) == 0 then return false end
  return v
end

-- Largest number of bytes of results and metadata in one answer. The limit keeps the transfer time
-- and the memory use small. The first result is returned even if it is longer.
local MOST = 1048576

-- Returns true if the answer has room for `size` more bytes. If not, puts DEFERRED, so that the
-- client sends the op again. The op calls this function before it changes anything.
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

-- A server whose memory is full refuses a write that may need memory, but only if it is the first
-- write of a script. An op that extends, gives back or completes needs next to none. So a write
-- that changes nothing comes first.
if find('XHKYDQMGFxcsu', kind, 1, true) then call('DEL', 'palisade:none') end
