-- Helpers of the ops on records, which are all other kinds. Reads a claim's fields; puts WRONG_TYPE
-- and ends if a field is not as we write it, or the key is another program's.
-- KEYS  1 record
-- ARGV  see each op
-- Puts  WRONG_TYPE

-- Returns true if the field is absent, or a whole number in digits within these bounds.
local function is_whole(text, least, most)
  if not text then return true end
  local x = #text <= 16 and string.find(text, '^%d+$') and tonumber(text)
  return x and x >= least and x < most
end

local key = KEYS[k + 1]
-- 1 own  2 fence  3 till (lease end, ms)  4 att  5 rf (record's ballot)  6 g  7 fp  8 w (a caller
-- waits for the end of the claim).
-- g names the server's data history at the last promise. The result is read only when it is shown.
-- While there are steps and no result, rf is an s and the ballot of the steps, and val holds them:
-- clients that know of no steps take the record for another program's and leave it alone.
local h = try('HMGET', key, 'own', 'fence', 'till', 'att', 'rf', 'g', 'fp', 'w')
local steps = not h.err and h[5] and string.match(h[5], '^s(%d+)$')
-- Doubles represent every whole number up to 2^53; tokens are smaller.
if h.err or not (is_whole(h[2], 1, 9007199254740992) and is_whole(h[3], 0, 9007199254740992)
  and is_whole(h[4], 0, 1000000000) and is_whole(steps or h[5], 1, 9007199254740992)
  and (h[2] or not h[5]))
then
  return put(WRONG_TYPE)
end
local fence, till, attempt = tonumber(h[2] or 0), tonumber(h[3] or 0), tonumber(h[4] or 0)
local rf = h[5] and not steps and tonumber(h[5])

-- Returns the result of a completed record (false if only the fact is kept), or the steps. If the
-- answer is full, or the value is not ours, puts that and returns nil; the op must not have changed
-- anything by then.
local function shown()
  local size = redis.call('HSTRLEN', key, 'val')
  if size >= 9437184 then return put(-5) end -- longer than any result
  if not has_room(size) then return nil end
  return redis.call('HMGET', key, 'val')[1]
end

local function put_completed(value)
  if value == nil then return end
  put(COMPLETED)
  put(rf)
  put(value)
end

-- Keeps a record for as long as this writer needs it, and never for less than an earlier writer
-- does. So no request within its retention finds it gone by any clock, and its promise outlives
-- every late request. A claim's lease is added: a completion within it need not keep the record.
local function keep(ms)
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end

-- Returns true if a higher ballot was promised, or this one to another owner. A promise of an
-- earlier history may have been lost together with higher ones, which were all below the floor.
local function is_overtaken(ballot, owner)
  local promised = b.floor > fence and h[6] ~= b.id and b.floor or fence
  return promised > ballot or (promised == ballot and h[1] ~= owner)
end

-- Publishes a hint to those who wait that the claim is over. A hint may be lost, so a missing
-- permission to publish does not fail the op.
local function wake()
  if not h[8] then return end
  redis.call('HDEL', key, 'w')
  redis.pcall('PUBLISH', 'palisade:changed', key)
end

-- Returns true if the record belongs to another request.
local function is_anothers(fp)
  return fp ~= '' and h[7] and h[7] ~= fp
end

-- Stores a fingerprint, unless there is one: the first that is known stays.
local function know(fp)
  if fp ~= '' and not h[7] then redis.call('HSET', key, 'fp', fp) end
end
