-- Fast path of complete (kind c), steps (s) and extend_claim (x): the owner still has the claim,
-- the op's ballot is the record's last, and the data history is as the client expects. While the
-- lease runs, the record's expiry, which the claim has set, is late enough for complete and steps
-- (claim.lua). No upvalues (helpers.lua).
-- KEYS     1 record
-- ARGV     1 kind, then as in complete.lua, steps.lua or extend_claim.lua
--          Parameters: `id`: name of the data history; `now_ms`: clock in ms
-- Returns  true if the op is done; false if nothing was changed
local function complete(k, a, id, now_ms)
  local KEYS, ARGV, call, try = KEYS, ARGV, redis.call, redis.pcall
  local kind, ballot, key = ARGV[a + 1], ARGV[a + 3], KEYS[k + 1]
  local h = redis.pcall('HMGET', key, 'own', 'fence', 'till', 'rf', 'g', 'fp', 'w')
  local till, rf, fp = tonumber(h[3] or nil), h[4], ARGV[a + 6]
  if h[1] ~= ARGV[a + 2] or h[2] ~= ballot or h[5] ~= id or h[7] or (fp ~= '' and h[6] ~= fp)
    or not till or till < now_ms or (rf and rf ~= 's' .. ballot)
  then
    return false
  end
  local done -- an error if the server refused the write, for example because its memory is full
  if kind == 'c' then
    if ARGV[a + 7] == '1' then
      done = try('HSET', key, 'till', '0', 'rf', ballot, 'val', ARGV[a + 4])
    elseif not rf then
      done = try('HSET', key, 'till', '0', 'rf', ballot)
    else
      return false
    end
  elseif kind == 's' then
    -- The longest list is kept, because a repeated request may arrive after a later one.
    if not rf or call('HSTRLEN', key, 'val') < #ARGV[a + 4] then
      done = try('HSET', key, 'rf', 's' .. ballot, 'val', ARGV[a + 4])
    end
  else
    -- An extension that names a quarantine is for extend_claim.lua.
    if ARGV[a + 7] ~= '' then return false end
    local left = call('PTTL', key)
    done = try('HSET', key, 'till', string.format('%.0f', now_ms + ARGV[a + 4]))
    if left < tonumber(ARGV[a + 5]) then call('PEXPIRE', key, ARGV[a + 5]) end
  end
  return type(done) ~= 'table'
end
