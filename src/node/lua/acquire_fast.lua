-- Fast path of acquire: takes free locks if the data history is as the client expects, up to the
-- first op that is not executed as requested, where acquire.lua continues. prelude.lua has checked
-- the range of the proposals. No upvalues (helpers.lua).
-- KEYS     per op: 1 lock   2 fence
-- ARGV     1 kind  2 number of ops  3 ttl ms  4 fence kept for ms, then per op: 1 owner  2 proposal
--          (proposed fencing token). Parameter `reserved` (W, O): value of a lock that is free, but
--          reserved for this handle
-- Returns  nothing if every op took its lock with its proposal as its fence. Else the number of ops
--          that did so before the first other op; and if this other op took its lock, but its fence
--          was not below its proposal, the previous value of the fence
local function acquire(k, a, count, reserved)
  local KEYS, ARGV, call, try = KEYS, ARGV, redis.call, redis.pcall
  local ttl, life = ARGV[a + 3], ARGV[a + 4]
  a = a + 4
  for i = 0, count - 1 do
    local proposal = ARGV[a + 2]
    if not call('SET', KEYS[k + 1], ARGV[a + 1], 'NX', 'PX', ttl) then
      if not reserved or try('GETRANGE', KEYS[k + 1], '0', '22') ~= reserved then return i end
      call('SET', KEYS[k + 1], ARGV[a + 1], 'PX', ttl)
    end
    local old = try('SET', KEYS[k + 2], proposal, 'PX', life, 'GET')
    -- Tokens with equally many digits compare as strings. The length of an error reply is 0.
    if old and (#old ~= #proposal or old >= proposal) then return i, old end
    k, a = k + 2, a + 2
  end
end
