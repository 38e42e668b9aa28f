-- Fast paths of a reader's acquire (S), extend (H) and release (G), if the data history is as the
-- client expects and, for S and G, no client waits on this server. A run is executed at once. S
-- needs a fence, because readers do not raise it; H one that is not below the owner's token.
-- shared.lua handles all else.
-- KEYS     as in shared.lua
-- ARGV     1 kind, then as in shared.lua
-- Returns  S: nil and the fence, if all owners are readers now; else 0, and nothing was changed
--          H: nothing if the owner was a reader and is extended; else 0, and no grant was changed
--          G: nothing if each owner was a reader and is removed; else the number of owners before
--          the first that was no reader: only these were removed
if kind == 'G' then
  local KEYS, ARGV, try = KEYS, ARGV, redis.pcall
  local lock, gone = KEYS[k + 1], 0
  while gone < count and try('ZREM', lock, ARGV[a + 3 + gone]) == 1 do gone = gone + 1 end
  if gone > 0 then
    -- With the last reader. If the user lacks a right, the key lasts longer, which is harmless.
    local last = try('ZRANGE', lock, '-1', '-1', 'WITHSCORES')
    if last[1] then try('PEXPIREAT', lock, last[2]) end
  end
  return gone < count and gone or nil
end

if kind == 'H' then
  local KEYS, ARGV, call, try = KEYS, ARGV, redis.call, redis.pcall
  local lock, owner, token = KEYS[k + 1], ARGV[a + 2], ARGV[a + 4]
  local before, given = try('ZSCORE', lock, owner), try('GETRANGE', KEYS[k + 2], '0', '18')
  local till = math.ceil(now_us / 1000) + ARGV[a + 3]
  if type(before) ~= 'string' or type(given) ~= 'string' or before * 1000 <= now_us
    or before + 0 > till or #given ~= #token or given < token or string.find(given, '%D') then
    return 0
  end
  -- If the user lacks a right, shared.lua answers. A changed expiry of the key is harmless.
  local left = call('PTTL', lock)
  till = string.format('%.0f', till)
  if left < 0 or left <= tonumber(ARGV[a + 3]) and type(try('PEXPIREAT', lock, till)) == 'table'
    or type(try('ZADD', lock, 'XX', till, owner)) == 'table' then return 0 end
  if call('PTTL', KEYS[k + 2]) < tonumber(life) then call('PEXPIRE', KEYS[k + 2], life) end
  return nil
end

if kind == 'S' then
  local KEYS, ARGV, call, try, find = KEYS, ARGV, redis.call, redis.pcall, string.find
  local lock, ttl, proposal = KEYS[k + 1], ARGV[a + 3], ARGV[a + 4]
  local first, left = try('ZRANGE', lock, '0', '0', 'WITHSCORES'), -1
  local given = try('GETRANGE', KEYS[k + 2], '0', '18')
  -- As strings (acquire_fast.lua). A fence that is not above the proposal needs no check, because
  -- prelude.lua has checked the proposal's range.
  if first.err or #given ~= #proposal or given > proposal or given < string.sub(marker, 211, 226)
    or find(given, '%D') then return 0 end
  if first[1] then
    left = call('PTTL', lock)
    if #first[1] ~= 22 or find(first[1], '[^%w_-]') or first[2] * 1000 <= now_us or left < 0
      or call('ZCARD', lock) + count > 4096 then return 0 end
  end
  local till = string.format('%.0f', math.ceil(now_us / 1000) + ttl)
  local added
  if count == 1 then
    added = try('ZADD', lock, 'NX', till, ARGV[a + 9])
  else
    local readers = {}
    for i = 1, count do readers[2 * i - 1], readers[2 * i] = till, ARGV[a + 8 + i] end
    added = try('ZADD', lock, 'NX', unpack(readers))
  end
  if type(added) == 'table' then return 0 end
  if not first[1] then
    -- The user lacks the right: the new readers go, because their key would never expire.
    if type(try('PEXPIREAT', lock, till)) == 'table' then
      call('DEL', lock)
      return 0
    end
  elseif added > 0 and left <= tonumber(ttl) then
    call('PEXPIREAT', lock, till)
  end
  if not first[1] or call('PTTL', KEYS[k + 2]) < tonumber(life) then
    call('PEXPIRE', KEYS[k + 2], life)
  end
  return nil, given
end
