-- Registers a client that wants a hint when a lock is released or its metadata change.
-- KEYS  1 queue
-- ARGV  none
-- Puts  DONE
if kind == 'I' then
  wait_for_hint(KEYS[k + 1], 10000)
  return put(DONE)
end
