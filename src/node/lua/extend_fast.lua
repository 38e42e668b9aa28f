-- Fast path of extend: the owner still has the lock, the fence is its token, and the lock has no
-- metadata. No upvalues (helpers.lua).
-- KEYS     1 lock   2 fence   3 metadata of the holder
-- ARGV     1 kind, then as in extend.lua
--          Parameter `life`: time in ms for which the fence is kept
-- Returns  true if the op is done; false if nothing was changed
local function prolong(k, a, life)
  local KEYS, ARGV, call, try = KEYS, ARGV, redis.call, redis.pcall
  if ARGV[a + 5] == '1' or try('GETRANGE', KEYS[k + 1], '0', '22') ~= ARGV[a + 2]
    or try('GETRANGE', KEYS[k + 2], '0', '18') ~= ARGV[a + 4]
    or call('EXISTS', KEYS[k + 3]) == 1 then return false end
  call('PEXPIRE', KEYS[k + 1], ARGV[a + 3])
  call('PEXPIRE', KEYS[k + 2], life)
  return true
end
