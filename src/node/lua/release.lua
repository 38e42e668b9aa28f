-- Slow path of release (D, Q: release_fast.lua): what was there of a run in which release_fast.lua
-- could not delete every lock. `found` holds the values that it read. And M: a fair waiter gives
-- back its reservation, and its place goes, too (fair 4).
-- KEYS, ARGV  as in release_fast.lua; M: 1 lock   2 queue, and 1 owner: six dashes and the handle
-- Puts        per op: DONE; else the first bytes of the value that was there, false if there was
--             none, or WRONG_TYPE if the key has no string
if kind == 'D' or kind == 'Q' or kind == 'M' then
  if kind == 'M' then
    give_up(KEYS[k + 2], sub(ARGV[a + 1], 7))
    a, count, rest = a - 2, 1, 2
    found = release(k, a, count, rest, nil, wake, b.now_us)
    if not found then return put(DONE) end
  end
  local gone, each = {}, rest
  for i = 1, count do
    local at = each * i - each + 1
    local lock, value = KEYS[k + at], found[at]
    if gone[lock] then -- an earlier release of this run has deleted it
      put(false)
    elseif value == ARGV[a + 2 + i] then
      gone[lock] = true
      put(DONE)
    elseif value then
      put(sub(value, 1, 23))
    else -- none, or no string
      put(type(look(lock, '0')) == 'table' and WRONG_TYPE)
    end
  end
  return
end
