-- Delete the owners' locks and wake waiters. Kind D, a run in two commands; Q, a run on a node
-- where somebody waits. It captures nothing, as it is made each time (helpers.lua).
-- KEYS     per op: 1 lock   2 queue (Q only: each key costs as much as a small command)
-- ARGV     1 kind  2 how many, then per op: 1 owner
-- Returns  nothing if each is done, else what was found under the keys
local function release(k, a, count, each, awaited)
  local KEYS, ARGV, call = KEYS, ARGV, redis.call
  local lock = KEYS[k + 1]
  if count == 1 and each == 1 and not awaited and redis.pcall('GET', lock) == ARGV[a + 3] then
    call('DEL', lock)
    return
  end
  -- MGET shows nothing where no text stands: what other programs keep there is left alone.
  local found = call('MGET', unpack(KEYS, k + 1, k + each * count))
  local gone, m, woken, missed = {}, 0, {}, false
  for i = 1, count do
    local at = each * i - each + 1
    if found[at] == ARGV[a + 2 + i] then
      m = m + 1
      gone[m] = KEYS[k + at]
      if each == 2 and found[at + 1] == '1' then
        m = m + 1
        gone[m] = KEYS[k + at + 1]
        woken[#woken + 1] = KEYS[k + at]
      end
    else
      missed = true
    end
  end
  if m > 0 and call('DEL', unpack(gone)) < m then missed = true end
  -- Who sent D did not know yet that somebody waits here: perhaps for one of these.
  if each == 1 and awaited then woken = gone end
  -- A hint may be lost, so a missing permission to publish is no fault of the op.
  for i = 1, #woken do redis.pcall('PUBLISH', 'palisade:changed', woken[i]) end
  if missed then return found end
end
