-- Shows what is there of a lock. No upvalues (helpers.lua).
-- KEYS, ARGV  not read. Parameters: `all`: list to which it is added; `key`, `fence`: keys, the
--          latter false if it is not to be shown; `first`: of readers and permits all are to be
--          shown, from this place on; `own`: the reader to be shown, or nil
-- Puts     the value, cut behind that of an owner; false if there is none, -5 if it is no string of
--          ours. Of readers the number of those that follow, of all, and of each the token and its
--          end: the latest, or the first if there is no place. Then the ms that are left, and the
--          fence in the same way
local function show(all, key, fence, first, own)
  local call, try, find = redis.call, redis.pcall, string.find

  -- Nil if the key has another type.
  local function ask(...)
    local v = try(...)
    if type(v) ~= 'table' or not v.err then return v end
    if not find(v.err, 'WRONGTYPE', 1, true) then call(...) end
  end

  local function read(key, to)
    local v = ask('GETRANGE', key, '0', to)
    if not v then return -5 end
    return (v ~= '' or call('EXISTS', key) == 1) and v
  end

  local value, left, top = read(key, first and '13056' or '22'), call('PTTL', key), nil
  if value == -5 and left >= 0 then
    top = ask('ZRANGE', key, first or '-1', '-1', 'WITHSCORES')
  end
  if top and top[1] and #top[1] == 22 and not find(top[1], '[^%w_-]') then
    local till, card = own and call('ZSCORE', key, own), call('ZCARD', key)
    if till then
      top = {own, till}
    elseif card >= 4096 and not first then
      top = call('ZRANGE', key, '0', '0', 'WITHSCORES')
    end
    all[#all + 1] = #top / 2
    all[#all + 1] = card
    for _, x in ipairs(top) do all[#all + 1] = x end
  else
    local is_cut = value and value ~= -5 and #value > 23 and not find(value, '^%d', 23)
    all[#all + 1] = is_cut and string.sub(value, 1, 23) or value
  end
  all[#all + 1] = left
  all[#all + 1] = fence and read(fence, '18')
end
