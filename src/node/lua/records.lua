-- Helpers of the ops on idempotency records, which are all kinds that the files before this one do
-- not handle. Reads the fields of the record. If a field is not as this script writes it, or the
-- key is another program's, puts WRONG_TYPE and ends the op.
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
-- 1 own (owner)  2 fence (promised ballot)  3 till (lease end, ms)  4 att (number of attempts)
-- 5 rf (ballot of the result)  6 g (data history of the server at the last promise, with its start)
-- 7 fp (fingerprint)  8 w (a client waits for the end of the claim)
-- The result is in val, which is read only when it is shown. While there are steps of the handler
-- and no result, rf is an s and the ballot of the steps, and val holds the steps. An earlier
-- version of this library, which knows no steps, takes such a record for another program's and
-- leaves it alone.
local h = try('HMGET', key, 'own', 'fence', 'till', 'att', 'rf', 'g', 'fp', 'w')
local steps = not h.err and h[5] and string.match(h[5], '^s(%d+)$')
-- Fencing tokens are below 2^53, because doubles represent every whole number up to there.
if h.err or not (is_whole(h[2], 1, 9007199254740992) and is_whole(h[3], 0, 9007199254740992)
  and is_whole(h[4], 0, 1000000000) and is_whole(steps or h[5], 1, 9007199254740992)
  and (h[2] or not h[5]))
then
  return put(WRONG_TYPE)
end
local fence, till, attempt = tonumber(h[2] or 0), tonumber(h[3] or 0), tonumber(h[4] or 0)
local rf = h[5] and not steps and tonumber(h[5])

-- Returns the result of a completed record (false if only the fact that there is one is kept), or
-- the steps. If the answer is full, or the value is too long to be ours, puts DEFERRED or
-- WRONG_TYPE and returns nil; the op must not have changed anything by then.
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

-- Keeps the record for at least `ms`, and never for less than an earlier writer needed. So no
-- request within its retention finds the record gone, by any clock, and the promise is kept until
-- every late request is over. The `ms` of a claim include its lease, so a completion within the
-- lease need not call this.
local function keep(ms)
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end

-- Returns true if a higher ballot was promised, or this ballot to another owner. If the promise is
-- of an earlier data history, a higher one may have been forgotten; all that were forgotten are
-- below the floor, so the floor counts as promised.
local function is_overtaken(ballot, owner)
  local promised = b.floor > fence and h[6] ~= b.id and b.floor or fence
  return promised > ballot or (promised == ballot and h[1] ~= owner)
end

-- Publishes a hint that the claim is over, if a client waits for that. A hint may be lost, so a
-- missing permission to publish does not fail the op.
local function wake()
  if not h[8] then return end
  redis.call('HDEL', key, 'w')
  redis.pcall('PUBLISH', 'palisade:changed', key)
end

-- Returns true if the record has the fingerprint of another request.
local function is_anothers(fp)
  return fp ~= '' and h[7] and h[7] ~= fp
end

-- Stores the fingerprint if the record has none; one that is stored stays.
local function know(fp)
  if fp ~= '' and not h[7] then redis.call('HSET', key, 'fp', fp) end
end
