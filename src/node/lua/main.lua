-- Executes the ops in order, each with its keys and arguments behind those of the one before. Runs
-- of acquires with one ttl and runs of releases are sent as one.
-- KEYS     from 2: the ops' keys          ARGV  from 5: per run or single op its kind and then
--          A, V, W, T: number of ops (A only: more than one), ttl, fence life, their arguments
--          D, Q: number of ops, their arguments      else: its arguments
-- Returns  the clock in µs, if all is as the client expects and each op of these kinds is executed
--          as requested: an acquire or a claim with its proposal for a fence, and a claim of a key
--          that has no record. Else a list: the clock, the present marker, bits (1 the marker was
--          written because the history is new, 2 there was none before, 4 its length was raised),
--          then per op: 1 done, 0 not the owner's, -1 absent, -2 quarantined, -3 held, -4 held by
--          another program, -5 wrong type, -6 other fingerprint, -7 completed, -8 in flight, -9
--          once for a whole run: as requested, -10 too late and not executed, -11 the request is
--          too old, -12 not executed because the answer is full: ask again, -13 readers. Acquire,
--          claim, inspect and lookup confirm by their fence. Each op's file documents what
--          follows the number.
local b -- what the rare ops share, made when it is needed
if not expected then
  b = batch(info, at, marker, now_us, false)
  if b.err then return b end
end
-- Number of KEYS and ARGV of the single ops.
local sizes = 'C18 c16 s15 x16 r12 u12 L11 X46 R22 I41 M31 E14 S37 H34 G21'
local k, a, last = 1, 4, #ARGV
local whole = 0 -- so many runs are as asked, as long as there is nothing else to say
-- How long a fence is kept, the name of the history and the clock in ms, once they are needed.
local life, id, now_ms
while a < last do
  local kind, count, keys, args, rest, found = ARGV[a + 1], nil, nil, nil, true, nil
  if kind == 'A' or kind == 'W' or kind == 'V' or kind == 'T' then
    count = tonumber(ARGV[a + 2])
    keys, args, rest = kind == 'A' and 2 * count or 3, 4 + 2 * count, 0
    local reserved
    if kind == 'W' then args, reserved = 9, '------' .. ARGV[a + 8] end
    if kind == 'T' then
      args = 7
    elseif expected then
      rest, found = acquire(k, a, count, reserved)
    end
  elseif kind == 'D' or kind == 'Q' then
    count = tonumber(ARGV[a + 2])
    keys, args, rest = kind == 'D' and count or 2 * count, 2 + count, kind == 'D' and 1 or 2
    found = release(k, a, count, rest, b and b.waited > b.now_ms, wake, now_us)
    if not found then rest = nil end
  else
    local size = find(sizes, kind, 1, true)
    keys, args = string.byte(sizes, size + 1) - 48, string.byte(sizes, size + 2) - 47
    if kind == 'X' and expected then
      life = life or string.match(ARGV[4], '^%d+ %d+ %d+ %d+ %d+ (%d+)')
      if prolong(k, a, life) then rest = nil end
    elseif expected and find('Ccxs', kind, 1, true) then
      if not id then
        now_ms = math.floor(now_us / 1000)
        id = string.sub(marker, 1, 16) .. string.format(':%.0f', string.sub(marker, 42, 54))
      end
      if kind == 'C' then
        found = claim(k, a, id, now_ms)
        if found == true then rest = nil end
      elseif complete(k, a, id, now_ms) then
        rest = nil
      end
    end
  end
  if rest and not b then
    b = batch(info, at, marker, now_us, true)
    for _ = 1, whole do b.out[#b.out + 1] = -9 end
  end
  local done
  if kind == 'C' and rest then done = replay(b, k, a, found) end
  if done then
    -- `replay` has put the result.
  elseif rest then
    rare(b, kind, k, a, count, rest, found, release, wake)
  elseif b then
    b.out[#b.out + 1] = -9
  else
    whole = whole + 1
  end
  k, a = k + keys, a + args
end
if b then return b.out end
return now_us
