-- Helpers of the ops on idempotency records. These are all ops that the earlier files of the script
-- do not handle. Reads the fields of the record of the op's key. If a field has a form that this
-- script never writes, or the key belongs to another program, puts WRONG_TYPE and ends the op.
-- KEYS  1 record
-- ARGV  see the file of each op
-- Puts  WRONG_TYPE

-- Returns true if the field is absent, or is a whole number in digits from `least` to below `most`.
local function is_whole(text, least, most)
  if not text then return true end
  local x = #text <= 16 and string.find(text, '^%d+$') and tonumber(text)
  return x and x >= least and x < most
end

local key = KEYS[k + 1]
-- Fields of the record:
-- 1 own (owner)  2 fence (last ballot)  3 till (lease end, ms)  4 att (number of attempts)
-- 5 rf (ballot of the result)  6 g (data history of the last ballot, and start of that history)
-- 7 fp (fingerprint of the request)  8 w (set if a client waits for the end of the claim)
-- The field val holds the result. It is read only when the op returns the result. If the handler
-- has finished some steps and there is no result yet, val holds the list of these steps, and rf is
-- an s and their ballot. An earlier version of this library, which has no steps, does not change
-- such a record, because it treats the record as another program's.
local h = read('HMGET', key, 'own', 'fence', 'till', 'att', 'rf', 'g', 'fp', 'w')
local steps = not h.err and h[5] and string.match(h[5], '^s(%d+)$')
-- Fencing tokens are below 2^53, because doubles represent every whole number below that. Each
-- write leaves a record with the five fields that are asked for here. A hash that lacks one is
-- another program's.
if h.err or not (is_whole(h[2], 1, 9007199254740992) and is_whole(h[3], 0, 9007199254740992)
  and is_whole(h[4], 0, 1000000000) and is_whole(steps or h[5], 1, 9007199254740992)
  and (h[1] and h[2] and h[3] and h[4] and h[6] or redis.call('EXISTS', key) == 0))
then
  return put(WRONG_TYPE)
end
local fence, till, attempt = tonumber(h[2] or 0), tonumber(h[3] or 0), tonumber(h[4] or 0)
local rf = h[5] and not steps and tonumber(h[5])

-- Returns the field val: the result of a completed record (false if only the fact of completion is
-- kept), or the list of finished steps. If the answer is full, puts DEFERRED and returns nil. If
-- the value is longer than any value of this library, puts WRONG_TYPE and returns nil. The op calls
-- this function before it changes anything.
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

-- Keeps the record for at least `ms`, and never shortens the expiry that an earlier op set. So the
-- record exists until the retention of each request ends, by the clock of any server or client. And
-- the ballot (the token and owner of the last claim) is kept until every request that arrives late
-- was refused. The `ms` of a claim include the lease of the claim, so a completion within the lease
-- need not call this function.
local function keep(ms)
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end

-- Returns true if the record has a higher ballot than `ballot`, or has this ballot with another
-- owner. If the ballot of the record is from an earlier data history, the server may have lost a
-- higher ballot. Every lost ballot is below the floor (the smallest ballot of this history), so the
-- larger of the floor and the ballot of the record counts.
local function is_overtaken(ballot, owner)
  local promised = b.floor > fence and h[6] ~= b.id and b.floor or fence
  return promised > ballot or (promised == ballot and h[1] ~= owner)
end

-- Publishes a hint that the claim has ended, if a client waits for this hint. If the user may not
-- publish, the op succeeds all the same, because hints may be lost.
local function wake()
  if not h[8] then return end
  redis.call('HDEL', key, 'w')
  redis.pcall('PUBLISH', 'palisade:changed', key)
end

-- Returns true if the idempotency record has the fingerprint of another request.
local function is_anothers(fp)
  return fp ~= '' and h[7] and h[7] ~= fp
end

-- Stores the fingerprint of the request if the record has none. A stored fingerprint is never
-- replaced.
local function know(fp)
  if fp ~= '' and not h[7] then redis.call('HSET', key, 'fp', fp) end
end
