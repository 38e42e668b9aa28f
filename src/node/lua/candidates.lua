-- Writes, extends or removes a candidate's entry in the list of an election's candidates, and reads
-- all entries of the list. No upvalues (batch.lua).
-- KEYS     1 list: per entry its owner, its end in ms, the length of its text, and the text,
--          separated by one space
-- ARGV     1 kind (E)  2 owner  3 ttl ms  4 text, '' to remove the entry
--          5 1 to send a hint to the clients that watch the list, else 0
--          Parameters: `b`: batch.lua; `room`: as in write.lua
-- Returns  a table, and the room that is left: number of entries, then per entry: owner, ms left,
--          text | -5: another program wrote the key | -10: the deadline has passed
--          | -12: the answer is full, so nothing was done
local function enlist(b, k, a, room)
  local key, ARGV, call, find = KEYS[k + 1], ARGV, redis.call, string.find
  local most, longest, now_ms = 64, 1024, b.now_ms
  local owner, text = ARGV[a + 2], ARGV[a + 4]
  if b.late then return {-10}, room end
  local list = redis.pcall('GETRANGE', key, '0', most * (longest + 64))
  if list.err and not find(list.err, 'WRONGTYPE', 1, true) then call('GETRANGE', key, '0', '0') end
  -- Owners, ends and texts of the entries that have not expired, in the order of the list; `own` is
  -- this candidate's position.
  local who, till, what, own, at = {}, {}, {}, nil, 1
  local is_ours = not list.err and (list ~= '' or call('EXISTS', key) == 0)
  while is_ours and at <= #list do
    local name, ends, size, from = string.match(list, '^([%w_-]+) (%d+) (%d+) ()', at)
    size, ends = tonumber(size), tonumber(ends)
    is_ours = from and from + size - 1 <= #list
    if is_ours and ends > now_ms then
      local n = #who + 1
      who[n], till[n], what[n] = name, ends, string.sub(list, from, from + size - 1)
      if name == owner then own = n end
    end
    at = is_ours and from + size
  end
  if not is_ours then return {-5}, room end
  local size = #list + #text
  -- Later results are deferred, too, so that this op is not overtaken for ever.
  if room <= 0 or size > room and room < 1048576 then return {-12}, 0 end
  if text == '' then
    if own then for _, of in ipairs({who, till, what}) do table.remove(of, own) end end
  elseif own or #who < most and not b.full then
    own = own or #who + 1
    who[own], till[own], what[own] = owner, now_ms + tonumber(ARGV[a + 3]), text
  end
  if own then
    local parts, last = {}, 0
    for i = 1, #who do
      parts[i] = who[i] .. string.format(' %.0f ', till[i]) .. #what[i] .. ' ' .. what[i]
      last = math.max(last, till[i])
    end
    if last > 0 then
      call('SET', key, table.concat(parts), 'PX', string.format('%.0f', last - now_ms))
    else
      call('DEL', key)
    end
    -- Without the right to publish, the op succeeds nevertheless: a hint may be missing.
    if ARGV[a + 5] == '1' then redis.pcall('PUBLISH', 'palisade:changed', key) end
  end
  local shown = {#who}
  for i = 1, #who do
    shown[3 * i - 1], shown[3 * i], shown[3 * i + 1] = who[i], till[i] - now_ms, what[i]
  end
  return shown, room - size
end
