-- Wakes those who wait for a lock, takes them out of its queue, and reserves the lock for them: the
-- first waiter, or, where that is a reader, it and all readers before the first exclusive waiter
-- that asked lately (readers 10). A fair waiter stays in the queue (fair 5). No upvalues: the
-- closure is created on every call (helpers.lua).
-- The queue's value begins with 1 if a client watches the lock, else 0. Then per waiter, the
-- longest wait first, 48 characters: the start of the wait by this clock, in µs (16 digits), or its
-- ticket, x for an exclusive, s for a shared and X for a fair waiter, its handle (16 hex digits),
-- the ms for which the lock is reserved for it (2 digits), and the time in ms until which it keeps
-- out those that began to wait later (13 digits); of a waiter for a permit, instead of this time,
-- the number of slots that it knows (slots.lua).
-- A waiter without a connection is skipped. A hint may be lost, so a missing permission to publish
-- does not fail the op: then all are woken on the common channel, and nothing is reserved.
-- KEYS, ARGV  none of the op: `lock` and `queue` are keys, `v` the queue's value; `beside` is true
--             if a reader that was the writer holds the lock, so that only readers are woken
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
      call('SET', lock, '------' .. waiter, 'NX', 'PX', string.format('%.0f', longest))
    end
    if watched == '1' then redis.pcall('PUBLISH', 'palisade:changed', lock) end
    rest = '0' .. rest
  end
  if rest == '0' then call('DEL', queue) else call('SET', queue, rest, 'KEEPTTL') end
end
