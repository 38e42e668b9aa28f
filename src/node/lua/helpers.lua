-- What the rarer ops share.
-- KEYS, ARGV  as handed in by the op
-- Returns     per function what its comment says

-- The name of this life and of its quarantine.
local id = sub(replid, 1, 16) .. ':' .. digits(since)

-- Whether an extension counts: outside quarantine, or within it if its holder names it.
local function may_extend(named)
  return left <= 0 or named == id
end

-- Whether a token lies further ahead than honest clocks and servers can bring it: 6E, and a second
-- for what is rounded.
local function is_ahead(token)
  return token > now_us + 6 * clock_error + 1000000
end

-- Whether it is a fence: a whole number that an answer can tell. Below zero the answers begin.
local function is_fence(x)
  return x and x >= 0 and x < 1e18 and x % 1 == 0
end

-- How far two servers' clocks differ at the most, in ms.
local apart = math.ceil(clock_error / 500)

-- What stands under a lock that is nobody's, while it is kept from all but its holder; as long as
-- an owner.
local KEPT = string.rep('-', 22)

-- What stands under a key, false if nothing does. Of a text not more than one byte beyond the
-- longest of ours, so that no value of another program's holds up the server or its answer.
local function look(key, longest)
  local v = try('GETRANGE', key, 0, longest)
  if v == '' and call('EXISTS', key) == 0 then return false end
  return v
end

-- The number in a fence key: 0 if there is none, nil if a stranger's value stands there.
local function stored(key)
  local v = look(key, 18)
  if not v then return 0 end
  local number = type(v) == 'string' and find(v, '^%d+$') and tonumber(v)
  return is_fence(number) and number or nil
end

-- The next fence above `old`.
local function next_fence(old, proposal)
  return math.max(tonumber(in_range(proposal)), old + 1)
end

-- Tells waiters, if there are any. A hint may be lost, so a missing permission to publish is no
-- fault of the op. What another program keeps under that key is left alone.
local function hint(queue, key)
  if try('GETRANGE', queue, 0, 1) == '1' then
    call('DEL', queue)
    try('PUBLISH', 'palisade:changed', key)
  end
end

-- Asks for a hint, and has the marker say that somebody does: ahead, so that it is seldom written.
-- For an hour at most, however long a stranger's lock stands: who waits asks again long before.
local function wait_for_hint(queue, ms)
  local v = look(queue, 1)
  if v and v ~= '1' then return end
  ms = math.min(ms, 3600000)
  call('SET', queue, '1', 'PX', ms)
  if waited < now_ms + ms then
    waited = now_ms + ms + 10000
    mark()
  end
end

-- Whether a holder's words may stand here: text that expires, unlike most keys of others.
local function is_words(meta)
  return type(try('GETRANGE', meta, 0, 0)) == 'string' and call('PTTL', meta) >= 0
end

-- Whether it is a field of ours, or none: a whole number in digits, of this size.
local function is_whole(text, least, most)
  if not text then return true end
  local x = #text <= 16 and find(text, '^%d+$') and tonumber(text)
  return x and x >= least and x < most
end

-- Up to here doubles hold every whole number; tokens are smaller.
local TOKEN_END = 9007199254740992

-- A claim's fields, or nil for a stranger's key, or where a field is not what ours are:
-- 1 own  2 fence  3 till (lease end, ms)  4 att  5 rf (record's ballot)  6 g  7 fp
-- g names the server's life at the last promise. Its value is read where it is shown.
local function record(key)
  local h = try('HMGET', key, 'own', 'fence', 'till', 'att', 'rf', 'g', 'fp')
  if not h.err and is_whole(h[2], 1, TOKEN_END) and is_whole(h[3], 0, TOKEN_END)
    and is_whole(h[4], 0, 1000000000) and is_whole(h[5], 1, TOKEN_END) and (h[2] or not h[5]) then
    return h
  end
  put(WRONG_TYPE)
  return nil
end

-- The ballot below which nothing is accepted. A promise of an earlier generation may have been lost
-- with newer ones, which were all below the floor.
local function promised(h)
  local fence = tonumber(h[2]) or 0
  if floor > fence and h[6] ~= id then return floor end
  return fence
end

-- How many bytes of results and words the answer may still show, so that it arrives in time and
-- neither side piles up memory for it. The first is shown whatever its length.
local MOST = 1048576
local room = MOST
-- Longer than any result: what another program put there.
local RESULT_END = 9437184

-- Whether so much more may be shown. If not, that is put, and nothing may have been changed.
local function has_room(size)
  if room <= 0 or size > room and room < MOST then
    room = 0 -- for all that follow, so that none is overtaken for ever
    put(DEFERRED)
    return false
  end
  room = room - size
  return true
end

-- The result of a completed record, false if only the fact is kept. Nothing where the answer is
-- full, or the result is not ours: that is put then, and nothing may have been changed.
local function shown(key)
  local size = call('HSTRLEN', key, 'val')
  if size >= RESULT_END then return put(WRONG_TYPE) end
  if not has_room(size) then return nil end
  return call('HMGET', key, 'val')[1]
end

local function put_completed(h, value)
  if value == nil then return end
  put(COMPLETED)
  put(tonumber(h[5]))
  put(value)
end

-- Keeps a record for as long as this writer needs it, and never for less than an earlier one does:
-- so that no request within its retention finds it gone by any clock, and its promise outlives
-- every late request.
local function keep(key, retention)
  local ms = math.max(tonumber(retention) + apart + 1, tonumber(fence_life))
  if call('PTTL', key) < ms then call('PEXPIRE', key, digits(ms)) end
end

-- Whether the record belongs to another request.
local function is_anothers(h, fp)
  return fp ~= '' and h[7] and h[7] ~= fp
end

-- The first fingerprint that is told stays.
local function know(key, h, fp)
  if fp ~= '' and not h[7] then call('HSET', key, 'fp', fp) end
end
