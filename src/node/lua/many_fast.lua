-- Fast paths of acquire (N) and extend (K) of several locks, if the data history is as the client
-- expects. N: all are free and their fences are below the proposal. K: the owner has all of them
-- and their fences are its token. many.lua handles all else.
-- KEYS     as in many.lua
-- ARGV     1 kind, then as in many.lua
-- Returns  nothing if the op is done; after N, each fence is then the proposed token. Else 0, and
--          nothing was changed
if kind == 'K' then
  local KEYS, ARGV, call = KEYS, ARGV, redis.call
  local n, owner, ttl, token = tonumber(ARGV[a + 2]), ARGV[a + 3], ARGV[a + 4], ARGV[a + 5]
  -- False for a key that holds no string; then many.lua executes the op.
  local values = call('MGET', unpack(KEYS, k + 1, k + 2 * n))
  for i = 1, n do
    if values[i] ~= owner or values[i + n] ~= token then return 0 end
  end
  for i = k + 1, k + n do
    call('PEXPIRE', KEYS[i], ttl)
    call('PEXPIRE', KEYS[i + n], life)
  end
  return nil
end

if kind == 'N' then
  local KEYS, ARGV, call = KEYS, ARGV, redis.call
  local n, owner, ttl, proposal = tonumber(ARGV[a + 2]), ARGV[a + 3], ARGV[a + 4], ARGV[a + 5]
  -- False for a fence that does not exist, and for a key that holds no string: EXISTS counts the
  -- second kind.
  local fences, there = call('MGET', unpack(KEYS, k + n + 1, k + 2 * n)), 0
  for i = 1, n do
    local given = fences[i]
    if given then
      if #given ~= #proposal or given >= proposal or string.find(given, '%D') then return 0 end
      there = there + 1
    end
  end
  -- Then no lock exists, and every existing fence was checked above.
  if call('EXISTS', unpack(KEYS, k + 1, k + 2 * n)) ~= there then return 0 end
  for i = k + 1, k + n do
    call('SET', KEYS[i], owner, 'PX', ttl)
    call('SET', KEYS[i + n], proposal, 'PX', life)
  end
  return nil
end
