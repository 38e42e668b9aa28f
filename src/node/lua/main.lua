-- Executes the ops in order, each with its keys and arguments behind those of the one before. Runs
-- of acquires with one ttl and runs of releases are told as one.
-- KEYS     from 2: the ops' keys          ARGV  from 11: per run or single op its kind and then
--          A: how many, ttl, their arguments      D, Q: how many, their arguments
--          W: ttl, its arguments                  else: its arguments
-- Returns  now_us, first 16 hex digits of replid, rest of the quarantine ms, its length ms,
--          bits of the marker: 1 written because the generation is new, 2 there was none before,
--          4 its length was raised, 8 the server keeps a backlog for replicas,
--          16 somebody may wait for a hint, 32 the history began without any data,
--          when the history began ms, then per op:
--          1 done, 0 not the owner's, -1 absent, -2 quarantined, -3 held, -4 held by a stranger,
--          -5 wrong type, -6 other fingerprint, -7 completed, -8 in flight, -9 once for all of a
--          run: as asked (an acquire its proposal for a fence, a release done), -10 too late and
--          not executed, -11 the request is too old, -12 not executed: the answer has shown as much
--          as it may, ask again; acquire, claim, inspect and lookup say yes by
--          their fence; what follows the number stands at each op.
local k, a = 1, 10
for _ = 1, tonumber(ARGV[10]) do
  local kind = ARGV[a + 1]
  if late and kind ~= 'D' and kind ~= 'Q' and kind ~= 'M' and kind ~= 'u' then
    k, a = rarely().skip(kind, k, a)
  elseif kind == 'A' then
    local count = tonumber(ARGV[a + 2])
    acquire(k, a + 3, count, ARGV[a + 3])
    k, a = k + 2 * count, a + 3 + 2 * count
  elseif kind == 'D' or kind == 'Q' then
    local count, each = tonumber(ARGV[a + 2]), kind == 'D' and 1 or 2
    release(k, a + 2, count, each)
    k, a = k + each * count, a + 2 + count
  elseif kind == 'M' then
    release(k, a + 1, 1, 2, KEYS[k + 3])
    k, a = k + 3, a + 2
  elseif kind == 'W' then
    acquire(k, a + 2, 1, ARGV[a + 2], KEYS[k + 3])
    k, a = k + 3, a + 4
  else
    local op = rarely()[kind]
    op.run(k, a + 1)
    k, a = k + op.keys, a + 1 + op.args
  end
end
return out
