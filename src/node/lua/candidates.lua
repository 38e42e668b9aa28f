-- Writes, extends or removes a candidate's entry in the list of an election's candidates, and reads
-- all entries of the list.
-- KEYS  1 list: per entry its owner, its end in ms, the length of its text, and the text,
--       separated by one space
-- ARGV  1 owner  2 ttl ms  3 text, '' to remove the entry
--       4 1 to send a hint to the clients that watch the list, else 0
-- Puts  number of entries, then per entry: owner, ms left, text
--       | WRONG_TYPE: another program wrote the key
--       | DEFERRED: the answer is full, so nothing was done
if kind == 'E' then
  local most, longest = 64, 1024
  local owner, text = ARGV[a + 1], ARGV[a + 3]
  local list = look(KEYS[k + 1], most * (longest + 64))
  if list and (type(list) ~= 'string' or list == '') then return put(WRONG_TYPE) end
  list = list or ''
  if not has_room(#list + #text) then return end
  -- Owners, ends and texts of the entries that have not expired, in the order of the list; `own` is
  -- this candidate's position.
  local who, till, what, own, at = {}, {}, {}, nil, 1
  while at <= #list do
    local name, ends, size, from = string.match(list, '^([%w_-]+) (%d+) (%d+) ()', at)
    size = tonumber(size)
    if not from or from + size - 1 > #list then return put(WRONG_TYPE) end
    ends = tonumber(ends)
    if ends > now_ms then
      local n = #who + 1
      who[n], till[n], what[n] = name, ends, string.sub(list, from, from + size - 1)
      if name == owner then own = n end
    end
    at = from + size
  end
  if text == '' then
    if own then for _, of in ipairs({who, till, what}) do table.remove(of, own) end end
  elseif own or #who < most and not b.full then
    own = own or #who + 1
    who[own], till[own], what[own] = owner, now_ms + tonumber(ARGV[a + 2]), text
  end
  if own then
    local parts, last = {}, 0
    for i = 1, #who do
      parts[i] = who[i] .. ' ' .. digits(till[i]) .. ' ' .. #what[i] .. ' ' .. what[i]
      last = math.max(last, till[i])
    end
    if last > 0 then
      call('SET', KEYS[k + 1], table.concat(parts), 'PX', digits(last - now_ms))
    else
      call('DEL', KEYS[k + 1])
    end
    -- Without the right to publish, the op succeeds nevertheless: a hint may be missing.
    if ARGV[a + 4] == '1' then try('PUBLISH', 'palisade:changed', KEYS[k + 1]) end
  end
  put(#who)
  for i = 1, #who do
    put(who[i])
    put(till[i] - now_ms)
    put(what[i])
  end
  return
end
