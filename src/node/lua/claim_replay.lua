-- Fast path of claim: puts a small stored result, the common answer to a repeated call, as
-- claim.lua would. No upvalues (helpers.lua).
-- KEYS     1 record
-- ARGV     1 kind, then as in claim.lua
--          Parameters: `b`: state of the batch (batch.lua); `h`: the fields of the record, if
--          claim_fast.lua has read them
-- Puts     COMPLETED, ballot of the result, value; or nothing
-- Returns  true if this function put the result, else false
local function replay(b, k, a, h)
  local KEYS, ARGV, call = KEYS, ARGV, redis.call
  local key, fp = KEYS[k + 1], ARGV[a + 6]
  h = h or redis.pcall('HMGET', key, 'fence', 'till', 'att', 'rf', 'fp')
  local fence, till, attempt, rf = h[1], h[2], h[3], h[4]
  if b.late or ARGV[a + 7] == '1' or not (fence and till and attempt and rf)
    or (fp ~= '' and h[5] and h[5] ~= fp)
    -- Whole numbers in digits, not empty, and not longer than this script writes.
    or #fence * #till * #attempt * #rf == 0 or #fence > 16 or #till > 15 or #attempt > 9 or #rf > 16
    or not string.find(fence .. till .. attempt .. rf, '^%d+$')
  then
    return false
  end
  fence, rf = tonumber(fence), tonumber(rf)
  local size, room = call('HSTRLEN', key, 'val'), b.room or 1048576
  if fence < 1 or fence >= 9007199254740992 or rf < 1 or rf >= 9007199254740992
    or size > 4096 or size > room or room <= 0
  then
    return false
  end
  b.room = room - size
  local out = b.out
  local n = #out
  out[n + 1], out[n + 2], out[n + 3] = -7, rf, call('HMGET', key, 'val')[1]
  return true
end
