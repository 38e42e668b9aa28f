-- Take free locks. Kind A, a run of them, or W for who waits and wants a hint.
-- KEYS  per op: 1 lock   2 fence   3 queue (W only: each key and argument costs as much as a small
--       command, so what is the same for a run is said once)
-- ARGV  per op: 1 owner  2 proposal
-- Puts  AS_ASKED for all if each has its proposal for a fence, else
--       fence | QUARANTINED | HELD, ms | FOREIGN, ms | WRONG_TYPE (fence key)
--       ms -1: no expiry
local function acquire(k, a, count, ttl, queue)
  local same = 0 -- so many are as asked, if they are all so far; nothing is put before one is not
  for i = 1, count do
    local lock, owner, proposal = KEYS[k + 1], ARGV[a + 1], ARGV[a + 2]
    local p
    if left <= 0 and not (settling and rarely().kept(lock, KEYS[k + 2]))
      and call('SET', lock, owner, 'NX', 'PX', ttl) then
      local fence, number = KEYS[k + 2], tonumber(proposal)
      p = number >= low and number <= high and proposal or in_range(proposal)
      local old = try('SET', fence, p, 'PX', fence_life, 'GET')
      -- Equal lengths: the order of digits is the order of numbers. A fault has length 0.
      if old and (#old ~= #p or old >= p) then
        p = rarely().above(lock, fence, old, p)
      end
    end
    if p == proposal and same == i - 1 then
      same = i
    else
      if same == i - 1 then
        for j = i - 1, 1, -1 do put(ARGV[a + 2 - 2 * j]) end
      end
      if p then
        put(p)
      elseif left > 0 then
        put(QUARANTINED)
      else
        rarely().refuse(lock, KEYS[k + 2], owner, queue)
      end
    end
    k, a = k + 2, a + 2
  end
  if same == count then put(AS_ASKED) end
end
