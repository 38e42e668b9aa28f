-- Wakes the first waiter of a lock that is free now, takes it out of the queue, and reserves the
-- lock for it; if it is a reader, also all readers before the first fresh exclusive waiter
-- (readers 10). A fair waiter stays in the queue until it has the lock or stops waiting (fair 4,
-- 5). No upvalues (batch.lua). The value of the queue begins with 1 if a client watches the lock,
-- else with 0. 48 characters follow for each waiter, the longest wait first:
--   16 digits      start of the wait by this clock, in µs; the ticket of a fair waiter
--   1 letter       x: exclusive waiter, s: shared waiter (reader), X: fair waiter
--   16 hex digits  handle of the waiter, which is the client to wake
--   2 digits       ms for which the lock is reserved for the waiter
--   13 digits      time in ms until which the waiter keeps out waiters that come later; for a
--                  permit, the number of slots that the waiter knows (permits.lua)
-- A waiter without a connection is skipped. If the user lacks the permission to publish to a
-- handle, the op does not fail, because a hint may be lost. In this case all waiters are woken on
-- the common channel `palisade:changed`, and nothing is reserved.
-- A release that deleted nothing has no write before these. If the server refuses them because its
-- memory is full, the waiter has no reservation, or keeps its place.
-- KEYS, ARGV  not read. Parameters: `lock` and `queue` are keys, `v` is the value of the queue;
--             `beside` is true if the lock is not free, because its writer has become a reader:
--             then only readers are woken
-- Returns     nothing
local function wake(lock, queue, v, now_us, beside)
  local call, sub = redis.call, string.sub
  local watched = sub(v, 1, 1)
  local at, rest, first, longest = 2, '', nil, 0
  while at < #v do
    local kind, handle = sub(v, at + 16, at + 16), sub(v, at + 17, at + 32)
    local is_fresh = (tonumber(sub(v, at + 35, at + 47)) or 0) * 1000 > now_us
    if kind == 'x' and (first or beside) then
      if is_fresh then break end
      rest = rest .. sub(v, at, at + 47)
    elseif kind == 'X' and (first or beside) then
      if is_fresh then break end
    elseif kind ~= 'X' or is_fresh then
      local heard = redis.pcall('PUBLISH', 'palisade:changed:' .. handle, lock)
      if type(heard) == 'table' then
        at, rest, first, watched, beside = #v + 1, '', nil, '1', nil
        for i = 2, #v, 48 do
          if sub(v, i + 16, i + 16) == 'X' then rest = rest .. sub(v, i, i + 47) end
        end
        break
      end
      if kind == 'X' then rest = rest .. sub(v, at, at + 47) end
      if heard > 0 then
        first = first or kind .. handle
        local ms = string.match(sub(v, at + 33, at + 34), '^%d%d$')
        longest = math.max(longest, tonumber(ms) or 0)
        if kind ~= 's' then
          at = at + 48
          break
        end
      end
    end
    at = at + 48
  end
  rest = rest .. sub(v, at)
  if beside then
    rest = watched .. rest
  else
    if first and longest > 0 then
      local waiter = sub(first, 1, 1) == 's' and 'r---------------' or sub(first, 2)
      redis.pcall('SET', lock, '------' .. waiter, 'NX', 'PX', string.format('%.0f', longest))
    end
    if watched == '1' then redis.pcall('PUBLISH', 'palisade:changed', lock) end
    rest = '0' .. rest
  end
  if rest == '0' then call('DEL', queue) else redis.pcall('SET', queue, rest, 'KEEPTTL') end
end
