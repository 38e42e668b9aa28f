-- Delete the owner's lock and what it said of itself; wake a waiter.
-- KEYS  1 lock   2 meta   3 queue
-- ARGV  1 owner
-- Puts  DONE | NOT_OWNER | ABSENT
local function release(k, a)
  -- MGET shows nothing where no text stands: what other programs keep there is left alone.
  local lock, meta, queue = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local found = call('MGET', lock, meta, queue)
  if found[1] ~= ARGV[a + 1] then
    if found[1] or call('EXISTS', lock) == 1 then return put(NOT_OWNER) end
    return put(ABSENT)
  end
  -- The meta goes too: the next holder may have none, and would be shown with this one's.
  if found[2] and is_words(meta) then call('DEL', meta) end
  if found[3] == '1' then
    call('DEL', lock, queue)
    try('PUBLISH', 'palisade:changed', lock)
  else
    call('DEL', lock)
  end
  put(DONE)
end
