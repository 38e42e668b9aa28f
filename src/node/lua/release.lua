-- Delete the owner's lock and what it said of itself; wake a waiter.
-- KEYS  1 lock   2 meta   3 queue
-- ARGV  1 owner
-- Puts  DONE | NOT_OWNER | ABSENT
local function release(k, a)
  local value = try('GET', KEYS[k + 1])
  if not value then return put(ABSENT) end
  if value ~= ARGV[a + 1] then return put(NOT_OWNER) end
  -- The meta goes too: the next holder may have none, and would be shown with this one's.
  if is_words(KEYS[k + 2]) then call('DEL', KEYS[k + 2]) end
  call('DEL', KEYS[k + 1])
  hint(KEYS[k + 3], KEYS[k + 1])
  put(DONE)
end
