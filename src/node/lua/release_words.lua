-- Release one who may have left metadata: it goes too, for the next holder may have none and would
-- be shown with it.
-- KEYS  1 lock   2 queue   3 meta
-- ARGV  1 owner
-- Puts  DONE | NOT_OWNER | ABSENT
if kind == 'M' then
  local value = look(KEYS[k + 1], '22')
  if value ~= ARGV[a + 1] then return put(value and NOT_OWNER or ABSENT) end
  call('DEL', KEYS[k + 1])
  if is_words(KEYS[k + 3]) then call('DEL', KEYS[k + 3]) end
  hint(KEYS[k + 2], KEYS[k + 1])
  return put(DONE)
end
