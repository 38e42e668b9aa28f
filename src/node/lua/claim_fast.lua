-- Fast path of claim, for a key without a record, if the data history is as the client expects.
-- claim_replay.lua handles a key with a result, claim.lua all else. No upvalues (helpers.lua).
-- KEYS     1 record
-- ARGV     1 kind, then as in claim.lua
--          Parameters: `id`: name of the data history; `now_ms`: clock in ms
-- Returns  true if the key is claimed, and its fence is the token that the
--          client proposed; else the fields of the record, which claim_replay.lua uses, and
--          nothing was changed
local function claim(k, a, id, now_ms)
  local KEYS, ARGV, call = KEYS, ARGV, redis.call
  local key, fp, latest = KEYS[k + 1], ARGV[a + 6], ARGV[a + 8]
  if call('EXISTS', key) == 1 or (latest ~= '' and tonumber(latest) < now_ms) then
    return redis.pcall('HMGET', key, 'fence', 'till', 'att', 'rf', 'fp')
  end
  local till = string.format('%.0f', now_ms + ARGV[a + 3])
  if fp == '' then
    call('HSET', key, 'own', ARGV[a + 2], 'fence', ARGV[a + 5], 'till', till, 'att', '1', 'g', id)
  else
    call('HSET', key, 'own', ARGV[a + 2], 'fence', ARGV[a + 5], 'till', till, 'att', '1', 'g', id,
      'fp', fp)
  end
  call('PEXPIRE', key, ARGV[a + 4])
  return true
end
