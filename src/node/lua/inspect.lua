-- Reads the holder or the readers of a lock.
-- KEYS  1 lock   2 fence   3 meta   4 queue
-- ARGV  1 wait for a hint: 0 or 1
-- Puts  fence, value, ms, meta | READING, fence, count, readers | ABSENT | DEFERRED
--       value false: the key holds no string; meta false: not the holder's metadata; ms -1: no
--       expiry
--       readers: at most 64, per reader its owner and ms, the longest first
if kind == 'I' then
  local most = 67584 -- longest metadata of a holder, in bytes
  local value = look(KEYS[k + 1], '22')
  if ARGV[a + 1] == '1' then wait_for_hint(KEYS[k + 4], 10000) end
  if type(value) == 'table' and are_readers(KEYS[k + 1]) then
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
  if not value and is_to_be_kept(KEYS[k + 1], KEYS[k + 2]) then
    put(stored(KEYS[k + 2]) or 0)
    put(KEPT)
    put(b.apart)
    return put(false)
  end
  if not value or is_ownerless(value) and value ~= KEPT then return put(ABSENT) end
  local meta = look(KEYS[k + 3], most)
  meta = type(meta) == 'string' and #meta <= most and meta
  if meta and not has_room(#meta) then return end
  put(stored(KEYS[k + 2]) or 0)
  put(type(value) == 'string' and value)
  put(call('PTTL', KEYS[k + 1]))
  return put(meta)
end
