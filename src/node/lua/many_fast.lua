-- Fast path of acquire of several locks (N), where the data history is as the client expects: takes
-- free locks whose fences are below the proposal. All other cases are for many.lua.
-- KEYS     as in many.lua
-- ARGV     the kind, and those of many.lua
-- Returns  nothing if all locks have the proposal as their fence; else 0, and nothing was changed
if kind == 'N' then
  local KEYS, ARGV, call = KEYS, ARGV, redis.call
  local n, owner, ttl, proposal = tonumber(ARGV[a + 2]), ARGV[a + 3], ARGV[a + 4], ARGV[a + 5]
  -- MGET shows no value for a key that holds no string.
  local fences, there = call('MGET', unpack(KEYS, k + n + 1, k + 2 * n)), 0
  for i = 1, n do
    local given = fences[i]
    if given then
      if #given ~= #proposal or given >= proposal or string.find(given, '%D') then return 0 end
      there = there + 1
    end
  end
  -- So many keys exist only if no lock does, and each fence that exists is one of these.
  if call('EXISTS', unpack(KEYS, k + 1, k + 2 * n)) ~= there then return 0 end
  for i = k + 1, k + n do
    call('SET', KEYS[i], owner, 'PX', ttl)
    call('SET', KEYS[i + n], proposal, 'PX', life)
  end
  return nil
end
