-- Delete the owner's lock; wake a waiter. Kind D, or M for one that may have left words.
-- KEYS  1 lock   2 queue   3 meta (M only)
-- ARGV  1 owner
-- Puts  DONE | NOT_OWNER | ABSENT
local function release(k, a, meta)
  -- MGET shows nothing where no text stands: what other programs keep there is left alone.
  local lock, queue = KEYS[k + 1], KEYS[k + 2]
  local found = call('MGET', lock, queue)
  if found[1] ~= ARGV[a + 1] then
    if found[1] or call('EXISTS', lock) == 1 then return put(NOT_OWNER) end
    return put(ABSENT)
  end
  if meta then rarely().forget(meta) end
  if found[2] == '1' then
    call('DEL', lock, queue)
    try('PUBLISH', 'palisade:changed', lock)
  else
    call('DEL', lock)
  end
  n = n + 1
  out[n] = DONE
end
