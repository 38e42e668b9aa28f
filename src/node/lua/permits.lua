-- The slots of a semaphore, which is one string with 51 characters for each: the owner (22; dots
-- after a release, the value of a reserved lock while reserved), the end of the grant in ms by this
-- clock (13 digits), and the fence (16 digits). No upvalues (batch.lua).
-- KEYS, ARGV  from ARGV[s + 1] on as for c and y in write.lua. Parameters: `slots`: the string as
--             steps before have made it; `freed`: list of the slots that they freed
-- Returns     the string as it becomes, nil if a condition does not hold; what to show, of c; true
--             if that is because no slot is free, or another program wrote the key
local function permits(kind, key, s, now_us, time, slots, freed)
  local ARGV, sub, find = ARGV, string.sub, string.find
  -- To make a text of a number costs more. Since 2001, and until 2286, a clock in ms has 13 digits.
  local now, released = time[1] .. sub('00000' .. time[2], -6, -4), '......................'
  if not slots then
    slots = redis.pcall('GETRANGE', key, '0', '13056')
    -- The first slot has to have the form that this script writes.
    local _, digits = find(slots.err or slots, '^%d+', 23)
    if slots == '' and kind == 99 and redis.call('EXISTS', key) == 0 then -- c
      digits = 51
    end
    if not digits or digits < 51 or #slots > 13056 or #slots % 51 ~= 0
      or find(sub(slots, 1, 22), '[^%w_.%-]') then return nil, nil, kind == 99 end
  end
  if kind == 121 then -- y
    local at, is, own, ms = ARGV[s + 1], ARGV[s + 2], ARGV[s + 3], ARGV[s + 4]
    local fence = ARGV[s + 5]
    at = at == '' and find(slots, is, 1, true) or at ~= '' and 51 * at + 1
    if not at or at % 51 ~= 1 or sub(slots, at, at + #is - 1) ~= is then return end
    local till, old = sub(slots, at + 22, at + 34), sub(slots, at + 35, at + 50)
    local other = #is == 51 and own ~= '' and find(slots, own, 1, true)
    if other and other ~= at
      or #is == 22 and (ms == '' and till <= now or fence ~= '' and old > fence)
    then
      return
    end
    if own == '' then
      freed[#freed + 1] = (at - 1) / 51
      own, till = released, '0000000000000'
    elseif ms ~= '' then
      till = math.ceil(now_us / 1000) + ms
    end
    if fence == '' then fence = old end
    return sub(slots, 1, at - 1) .. own .. till .. fence .. sub(slots, at + 51)
  end

  local of, slot, step, owner = ARGV[s + 1] + 0, ARGV[s + 2] + 0, ARGV[s + 3] + 0, ARGV[s + 4]
  local p, reserved = ARGV[s + 5], ARGV[s + 7]
  if #slots < 51 * of then
    local free = released .. '00000000000000000000000000000'
    slots = slots .. string.rep(free, of - #slots / 51)
  end
  local own, at = find(slots, owner, 1, true), nil
  if reserved == '-' and (own or sub(slots, 51 * slot + 1, 51 * slot + 51)
    ~= released .. '00000000000000000000000000000')
  then
    return
  end
  if own then
    if own % 51 ~= 1 or sub(slots, own + 22, own + 34) <= now then return end
    if step > 0 or own == 51 * slot + 1 then -- the request was repeated
      return false, sub(slots, own + 35, own + 50) .. ' ' .. (own - 1) / 51
    end
  end
  for _ = 1, step > 0 and of or 1 do
    local here = 51 * slot + 1
    local is_free = sub(slots, here, here) == '.' or sub(slots, here + 22, here + 34) <= now
    if not is_free and reserved ~= '' and sub(slots, here, here + 21) == reserved then
      at = here
      break
    end
    if is_free or step == 0 and find(slots, '^%-%-%-%-%-%-', here) then
      at = at or here
      if reserved == '' then break end
    end
    slot = (slot + step) % of
  end
  if not at then return nil, nil, not own end
  local fence, old = p, sub(slots, at + 35, at + 50)
  if old >= p then
    -- Correct clocks bring no fence farther ahead of a proposal that is in range.
    if find(old, '%D') or tonumber(old) >= p + 1000000 then return end
    fence = string.format('%016.0f', old + 1)
  end
  if own then
    slots = sub(slots, 1, own - 1) .. released .. '0000000000000' .. sub(slots, own + 35)
  end
  slots = sub(slots, 1, at - 1) .. owner .. math.ceil(now_us / 1000) + ARGV[s + 6] .. fence
    .. sub(slots, at + 51)
  return slots, fence .. ' ' .. (at - 1) / 51
end
-- Wakes one waiter for each of these free slots, which is reserved for it. The first gets the
-- highest slot that it knows, so that lower ones are left for waiters that know fewer (wake.lua).
-- No upvalues (batch.lua).
-- KEYS, ARGV  not read. Parameters: `slots`: as above; `freed`: list of slots, the lowest first;
--             `record`, `queue`: keys
-- Returns     the string as it becomes
local function hand_on(slots, freed, record, queue, now_us)
  local call, try, sub = redis.call, redis.pcall, string.sub
  local v = try('GETRANGE', queue, '0', '3120')
  if v.err or #v % 48 ~= 1 or not string.find(v, '^[01]') then return slots end
  local watched, at, rest = sub(v, 1, 1), 2, ''
  while freed[1] and at < #v do
    local handle, known, n = sub(v, at + 17, at + 32), tonumber(sub(v, at + 35, at + 47)), #freed
    while n > 0 and freed[n] >= (known or 0) do n = n - 1 end
    local heard = n > 0 and try('PUBLISH', 'palisade:changed:' .. handle, record)
    if not heard then
      rest = rest .. sub(v, at, at + 47)
    elseif type(heard) == 'table' then
      watched, at, rest = '1', #v, ''
    elseif heard > 0 then
      local ms, slot = tonumber(sub(v, at + 33, at + 34)) or 0, table.remove(freed, n)
      if ms > 0 then
        local till = string.format('%013.0f', math.floor(now_us / 1000) + ms)
        slots = sub(slots, 1, 51 * slot) .. '------' .. handle .. till .. sub(slots, 51 * slot + 36)
      end
    end
    at = at + 48
  end
  if watched == '1' then try('PUBLISH', 'palisade:changed', record) end
  v = '0' .. rest .. sub(v, at)
  if v == '0' then call('DEL', queue) else call('SET', queue, v, 'KEEPTTL') end
  return slots
end
