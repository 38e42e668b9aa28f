-- Fast paths of shared acquire (S) and shared release (G), where the data history is as the client
-- expects and no client waits on this server. An acquire needs a fence that is there, as readers do
-- not raise it. All other cases are for shared.lua, which finds nothing changed then. No upvalues:
-- the closure is created on every call (helpers.lua).
-- KEYS     as in shared.lua
-- ARGV     the kind, and those of shared.lua
--          floor: that of the marker   life: time for which the fence is kept, in ms
-- Returns  S: the fence   G: true   else nothing
local function share(kind, k, a, floor, now_us, life)
  local KEYS, ARGV, call, try = KEYS, ARGV, redis.call, redis.pcall
  local lock, owner = KEYS[k + 1], ARGV[a + 2]
  if kind == 'G' then
    -- The key ends with its last reader, so its end changes only if this one is the last.
    local last = try('ZRANGE', lock, '-2', '-1', 'WITHSCORES')
    if last.err or try('ZREM', lock, owner) ~= 1 then return nil end
    if last[3] == owner then call('PEXPIREAT', lock, last[2]) end
    return true
  end

  local first = try('ZRANGE', lock, '0', '0', 'WITHSCORES')
  local given = try('GETRANGE', KEYS[k + 2], '0', '18')
  -- Tokens with equally many digits can be compared as strings (acquire.lua). A fence that is not
  -- above a proposal of the present time is honest.
  local proposal = ARGV[a + 4]
  if first.err or #given ~= #proposal or given > proposal or given < floor
    or string.find(given, '%D') then return nil end
  if not first[1] then
    -- A user may lack this command, and the readers' key must not stay without an end.
    if type(try('PEXPIREAT', 'palisade:none', '1')) == 'table' then return nil end
  elseif #first[1] ~= 22 or string.find(first[1], '[^%w_-]') or first[2] * 1000 <= now_us
    or call('PTTL', lock) < 0 or call('ZCARD', lock) >= 4096 then
    return nil
  end
  local till = string.format('%.0f', math.ceil(now_us / 1000) + ARGV[a + 3])
  local added = try('ZADD', lock, 'NX', till, owner)
  if type(added) == 'table' then return nil end
  if added == 1 and (not first[1] or call('ZRANGE', lock, '-1', '-1')[1] == owner) then
    call('PEXPIREAT', lock, till)
  end
  call('PEXPIRE', KEYS[k + 2], life)
  return given
end
