-- Reads the holder or the readers of a lock, or the permits of a semaphore.
-- KEYS  1 lock (or semaphore)   2 fence   3 metadata of the holder   4 queue
-- ARGV  1 1 if the caller wants a hint when the lock is released, else 0
-- Puts  of a lock with a holder: fence; owner, or false if the key holds no text; ms until the key
--          expires, -1 if it does not; metadata, or false if there are none, or if they are no text
--          of a holder's length
--       of a lock with readers: READING, fence, number of readers, then for at most 64 of them the
--          owner and the ms left; the reader with the longest time is the first
--       of a semaphore: PERMITS, number of permits, then per permit its slot, owner, fence and ms
--          left (slots.lua)
--       ABSENT: the lock is free
--       DEFERRED: the answer to the batch has no room for more stored data; the client asks again
if kind == 'I' then
  local most = 67584 -- longest metadata of a holder, in bytes
  local value = look(KEYS[k + 1], '22')
  local is_read = type(value) == 'table' and are_readers(KEYS[k + 1])
  if ARGV[a + 1] == '1' then wait_for_hint(KEYS[k + 4], 10000) end
  if is_read then
    local last, live = call('ZRANGE', KEYS[k + 1], '-64', '-1', 'WITHSCORES'), 0
    while live < #last / 2 and tonumber(last[#last - 2 * live]) > now_ms do live = live + 1 end
    if live == 0 then return put(ABSENT) end
    put(READING)
    put(stored(KEYS[k + 2]) or 0)
    put(live == 64 and call('ZCARD', KEYS[k + 1]) or live)
    for i = 0, live - 1 do
      put(last[#last - 1 - 2 * i])
      put(last[#last - 2 * i] - now_ms)
    end
    return
  end
  local slots = type(value) == 'string' and #value > 22 and look(KEYS[k + 1], '13056')
  if slots and #slots <= 13056 and #slots % 51 == 0
    and find(sub(slots, 1, 51), '^[%w_.%-]+$') and find(slots, '^%d+', 23) then
    local n = 0
    put(PERMITS)
    local count = #out + 1
    put(n)
    for at = 1, #slots, 51 do
      local who, fence = sub(slots, at, at + 21), tonumber(sub(slots, at + 35, at + 50))
      local till = tonumber(sub(slots, at + 22, at + 34))
      if till and fence and till > now_ms and is_owner(who) and not is_ownerless(who) then
        n = n + 1
        put((at - 1) / 51)
        put(who)
        put(fence)
        put(till - now_ms)
      end
    end
    out[count] = n
    return
  end
  if not value or is_ownerless(value) and value ~= KEPT then
    local till = kept_till(KEYS[k + 1], KEYS[k + 2])
    if till <= now_ms then return put(ABSENT) end
    put(stored(KEYS[k + 2]) or 0)
    put(KEPT)
    put(till - now_ms)
    return put(false)
  end
  local meta = look(KEYS[k + 3], most)
  meta = type(meta) == 'string' and #meta <= most and meta
  if meta and not has_room(#meta) then return end
  put(stored(KEYS[k + 2]) or 0)
  put(type(value) == 'string' and value)
  put(call('PTTL', KEYS[k + 1]))
  return put(meta)
end
