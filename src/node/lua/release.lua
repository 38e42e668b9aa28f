-- Delete the owners' locks; wake waiters. Kind D, a run of them in two commands; Q, a run on a node
-- where somebody waits; M, one that may have left words.
-- KEYS  per op: 1 lock   2 queue (Q and M)   3 meta (M only)
-- ARGV  per op: 1 owner
-- Puts  AS_ASKED for all if each is done, else DONE | NOT_OWNER | ABSENT
local function release(k, a, count, each, meta)
  -- MGET shows nothing where no text stands: what other programs keep there is left alone.
  local found = call('MGET', unpack(KEYS, k + 1, k + each * count))
  local gone, m, woken, missed = {}, 0, nil, false
  for i = 1, count do
    local at = each * i - each + 1
    if found[at] == ARGV[a + i] then
      m = m + 1
      gone[m] = KEYS[k + at]
      if each == 2 and found[at + 1] == '1' then
        m = m + 1
        gone[m] = KEYS[k + at + 1]
        woken = woken or {}
        woken[#woken + 1] = KEYS[k + at]
      end
    else
      missed = true
    end
  end
  if m > 0 then
    if meta then rarely().forget(meta) end
    if call('DEL', unpack(gone)) < m then missed = true end
    -- Who sent D did not know yet that somebody waits here: perhaps for one of these.
    if each == 1 and waited > now_ms then woken = gone end
    if woken then rarely().wake(woken) end
  end
  if missed then return rarely().missed(k, a, count, each, found) end
  put(AS_ASKED)
end
