-- Fast paths of a permit's acquire (P), extend (Y) and release (F), if the data history is as the
-- client expects. P gives the first free slot to a client that does not wait. Y extends the only
-- slot of an owner, if its fence is the owner's token. F frees the only slot of an owner, while no
-- client waits on this server. slots.lua handles all else.
-- KEYS     as in slots.lua
-- ARGV     1 kind, then as in slots.lua
--          Parameter `second`: this server's clock in whole seconds, a text of 10 digits
-- Returns  nothing if Y or F is done; nil, the fence and the slot if P is done; else 0, and nothing
--          was changed
if kind == 'P' or kind == 'Y' or kind == 'F' then
  local KEYS, ARGV, find, sub = KEYS, ARGV, string.find, string.sub
  local record, owner = KEYS[k + 1], ARGV[a + 2]
  local v = redis.pcall('GETRANGE', record, '0', '13056')
  -- The first slot has to have the form that this script writes. `v` is an error table if the read
  -- failed.
  local _, digits = find(v.err or v, '^%d+', 23)
  if not digits or digits < 51 or #v > 13056 or #v % 51 ~= 0
    or find(sub(v, 1, 22), '[^%w_.%-]') then return 0 end
  local at = find(v, owner, 1, true) -- first character of the slot
  local fields
  -- As strings, in whole seconds: a grant that ends in the present one is for slots.lua.
  if kind == 'F' then
    if not at or at % 51 ~= 1 or sub(v, at + 22, at + 31) <= second
      or find(v, owner, at + 51, true) then return 0 end
    fields = '......................0000000000000' .. sub(v, at + 35, at + 50)
  elseif kind == 'Y' then
    if at ~= 51 * ARGV[a + 5] + 1 or #v < 51 * ARGV[a + 6] or #ARGV[a + 4] ~= 16
      or sub(v, at + 35, at + 50) ~= ARGV[a + 4] or find(v, owner, at + 51, true) then return 0 end
    fields = owner .. string.format('%013.0f', math.ceil(now_us / 1000) + ARGV[a + 3])
      .. ARGV[a + 4]
  else
    local slots, slot, step = tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6])
    local proposal, looked = ARGV[a + 7], 0
    if at or ARGV[a + 8] ~= '' or step == 0 or #v < 51 * slots then return 0 end
    while sub(v, 51 * slot + 23, 51 * slot + 32) > second do
      slot, looked = (slot + step) % slots, looked + 1
      if looked == slots then return 0 end
    end
    at = 51 * slot + 1
    if sub(v, at + 22, at + 31) == second or #proposal ~= 16
      or sub(v, at + 35, at + 50) >= proposal then return 0 end
    fields = owner .. string.format('%013.0f', math.ceil(now_us / 1000) + ARGV[a + 3]) .. proposal
  end
  v = sub(v, 1, at - 1) .. fields .. sub(v, at + 51)
  local left = kind ~= 'F' and redis.call('PTTL', record)
  if left and left < tonumber(life) then
    v = redis.pcall('SET', record, v, 'PX', life)
  else
    v = redis.pcall('SET', record, v, 'KEEPTTL')
  end
  if v.err then return 0 end
  if kind == 'P' then return nil, ARGV[a + 7], (at - 1) / 51 end
  return nil
end
