-- Slow path of release (D, Q: release_fast.lua): the results of a run in which release_fast.lua
-- could not delete every lock. `found` holds the values that it read.
-- KEYS, ARGV  as in release_fast.lua
-- Puts        per op: DONE | NOT_OWNER: another owner has the lock | ABSENT: the lock is free
if kind == 'D' or kind == 'Q' then
  local gone, each = {}, rest
  for i = 1, count do
    local at = each * i - each + 1
    local lock, value = KEYS[k + at], found[at]
    if gone[lock] then -- an earlier release of this run has deleted it
      put(ABSENT)
    elseif value == ARGV[a + 2 + i] then
      gone[lock] = true
      put(DONE)
    else
      value = value or look(lock, '22') -- release_fast.lua found only strings
      put(value and not is_ownerless(value) and NOT_OWNER or ABSENT)
    end
  end
  return
end
