-- Helpers of the ops on idempotency records, which are all that the earlier files do not handle.
-- Reads the record's fields. If one has a form that this script never writes, or the key belongs to
-- another program, puts WRONG_TYPE and ends the op.
-- KEYS  1 record
-- ARGV  see the file of each op
-- Puts  WRONG_TYPE

-- Absent, or a whole number in digits from `least` to below `most`.
local function is_whole(text, least, most)
  if not text then return true end
  local x = #text <= 16 and string.find(text, '^%d+$') and tonumber(text)
  return x and x >= least and x < most
end

local key = KEYS[k + 1]
-- Fields of the record:
-- 1 own (owner)  2 fence (last ballot)  3 till (lease end, ms)  4 att (number of attempts)
-- 5 rf (ballot of the result)  6 g (data history of the last ballot, and its start)
-- 7 fp (fingerprint of the request)  8 w (set if a client waits for the end of the claim)
-- val is the result, read only when the op returns it. With finished steps and no result yet, val
-- is their list, and rf is an s and their ballot. An earlier version of this library, which has no
-- steps, treats such a record as another program's.
local h = read('HMGET', key, 'own', 'fence', 'till', 'att', 'rf', 'g', 'fp', 'w')
local steps = not h.err and h[5] and string.match(h[5], '^s(%d+)$')
-- Doubles represent every whole number below 2^53, as tokens are. Each write leaves a record with
-- the five fields that are asked for here; a hash that lacks one is another program's.
if h.err or not (is_whole(h[2], 1, 9007199254740992) and is_whole(h[3], 0, 9007199254740992)
  and is_whole(h[4], 0, 1000000000) and is_whole(steps or h[5], 1, 9007199254740992)
  and (h[1] and h[2] and h[3] and h[4] and h[6] or redis.call('EXISTS', key) == 0))
then
  return put(WRONG_TYPE)
end
local fence, till, attempt = tonumber(h[2] or 0), tonumber(h[3] or 0), tonumber(h[4] or 0)
local rf = h[5] and not steps and tonumber(h[5])

-- The field val (false if only the fact of completion is kept). If the answer is full, puts
-- DEFERRED, and for a value longer than any of ours WRONG_TYPE, and returns nil. Called before the
-- op changes anything.
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

-- Keeps the record for at least `ms`, and never shortens its life: it exists until the retention of
-- each request ends by any clock, and its ballot until every late request was refused. A claim's
-- `ms` include its lease, so a completion within it need not call this (idempotency 9).
local function keep(ms)
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end

-- The record has a higher ballot, or this one with another owner. Of an earlier data history a
-- higher one may be lost, but every lost one is below the floor, so the larger of the two counts.
local function is_overtaken(ballot, owner)
  local promised = b.floor > fence and h[6] ~= b.id and b.floor or fence
  return promised > ballot or (promised == ballot and h[1] ~= owner)
end

-- If a client waits. Without the right to publish, the op succeeds all the same.
local function wake()
  if not h[8] then return end
  redis.call('HDEL', key, 'w')
  redis.pcall('PUBLISH', 'palisade:changed', key)
end

local function is_anothers(fp)
  return fp ~= '' and h[7] and h[7] ~= fp
end

-- A stored fingerprint is never replaced.
local function know(fp)
  if fp ~= '' and not h[7] then redis.call('HSET', key, 'fp', fp) end
end
