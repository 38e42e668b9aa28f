-- Settle a claim's ballot; shows the result if there is one. Refused while the promise is of an
-- earlier life: a higher one may have been forgotten.
-- KEYS  1 record
-- ARGV  1 owner  2 ballot
-- Puts  DONE | NOT_OWNER | WRONG_TYPE | COMPLETED, rf, value | DEFERRED
local function raise_claim(k, a)
  local h = record(KEYS[k + 1])
  if not h then return end
  local ballot = tonumber(ARGV[a + 2])
  local fits = h[1] == ARGV[a + 1] and h[6] == id and (tonumber(h[2]) or 0) <= ballot
  if not fits or is_ahead(ballot) then return put(NOT_OWNER) end
  local value = h[5] and shown(KEYS[k + 1])
  if value == nil then return end
  call('HSET', KEYS[k + 1], 'fence', ARGV[a + 2])
  if h[5] then return put_completed(h, value) end
  put(DONE)
end
