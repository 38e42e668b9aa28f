-- Fast path of complete, steps and extend_claim, for a claim whose owner still has it, under the
-- ballot that was promised last and in the data history that the client expects. While the lease
-- runs the record's expiry is late enough, because the claim has set it (claim.lua). The function
-- has no upvalues, because it is created anew on every call of the script (helpers.lua).
-- KEYS     1 record
-- ARGV     the kind, and those of the op
--          id, now_ms: see batch.lua
-- Returns  true if it is done; else nothing was changed
local function complete(k, a, id, now_ms)
  local KEYS, ARGV, call = KEYS, ARGV, redis.call
  local kind, ballot, key = ARGV[a + 1], ARGV[a + 3], KEYS[k + 1]
  local h = redis.pcall('HMGET', key, 'own', 'fence', 'till', 'rf', 'g', 'fp', 'w')
  local till, rf, fp = tonumber(h[3] or nil), h[4], ARGV[a + 6]
  if h[1] ~= ARGV[a + 2] or h[2] ~= ballot or h[5] ~= id or h[7] or (fp ~= '' and h[6] ~= fp)
    or not till or till < now_ms or (rf and rf ~= 's' .. ballot)
  then
    return false
  end
  if kind == 'c' then
    if ARGV[a + 7] == '1' then
      call('HSET', key, 'till', '0', 'rf', ballot, 'val', ARGV[a + 4])
    elseif not rf then
      call('HSET', key, 'till', '0', 'rf', ballot)
    else
      return false
    end
  elseif kind == 's' then
    -- The longest list of steps stays, for the reason in steps.lua.
    if not rf or call('HSTRLEN', key, 'val') < #ARGV[a + 4] then
      call('HSET', key, 'rf', 's' .. ballot, 'val', ARGV[a + 4])
    end
  else
    -- An extension. One that names a quarantine is left to extend_claim.lua.
    if ARGV[a + 7] ~= '' then return false end
    call('HSET', key, 'till', string.format('%.0f', now_ms + ARGV[a + 4]))
    if call('PTTL', key) < tonumber(ARGV[a + 5]) then call('PEXPIRE', key, ARGV[a + 5]) end
  end
  return true
end
