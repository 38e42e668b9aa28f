-- Executes the ops in order, each with its keys and arguments behind those of the one before.
-- KEYS     from 2: the ops' keys          ARGV  from 7: per op its kind and its arguments
-- Returns  now_us, first 16 hex digits of replid, rest of the quarantine ms, its length ms,
--          bits of the marker: 1 written because the generation is new, 2 there was none before,
--          4 its length was raised, then per op its result:
--          1 done, 0 not the owner's, -1 absent, -2 quarantined, -3 held, -4 held by a stranger,
--          -5 wrong type, -6 other fingerprint, -7 completed, -8 in flight; acquire, claim, inspect
--          and lookup say yes by their fence; what follows the number stands at each op.
local k, a = 1, 6
for _ = 1, tonumber(ARGV[6]) do
  a = a + 1
  local kind = ARGV[a]
  if kind == 'A' then
    acquire(k, a)
    k, a = k + 2, a + 3
  elseif kind == 'D' then
    release(k, a)
    k, a = k + 2, a + 1
  elseif kind == 'M' then
    release(k, a, KEYS[k + 3])
    k, a = k + 3, a + 1
  elseif kind == 'W' then
    acquire(k, a, KEYS[k + 3])
    k, a = k + 3, a + 3
  else
    local op = rarely()[kind]
    op.run(k, a)
    k, a = k + op.keys, a + op.args
  end
end
return out
