-- Reads who holds locks, elections and semaphores. Changes nothing.
-- KEYS  per name: 1 lock   2 fence   3 meta
-- ARGV  per name: 1 if it is a semaphore, else 0
-- Returns  for each name a list of its grants; the list is empty for a name that no owner of
--          palisade holds. A grant is: the owner's token, the fence, ms until the grant ends, the
--          holder's metadata or an empty text, the slot or -1, the number of readers. Several
--          readers have one grant in the list: the grant of the reader that ends last
local out = {}
local now = read('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)

local function permits(found, lock)
  local v = read('GETRANGE', lock, 0, 13056)
  if type(v) ~= 'string' or #v > 13056 or #v % 51 ~= 0 then return end
  for at = 1, #v, 51 do
    local till = tonumber(string.sub(v, at + 22, at + 34))
    if till and till > now then
      local owner, fence = string.sub(v, at, at + 21), string.sub(v, at + 35, at + 50)
      found[#found + 1] = {owner, fence, till - now, '', (at - 1) / 51, 0}
    end
  end
end

local function readers(found, lock, fence)
  local last = read('ZRANGE', lock, '-64', '-1', 'WITHSCORES')
  if last.err or read('PTTL', lock) < 0 then return end
  local live = 0
  while live < #last / 2 and tonumber(last[#last - 2 * live]) > now do live = live + 1 end
  if live == 0 or #last[#last - 1] ~= 22 then return end
  local left = tonumber(last[#last]) - now
  if live == 64 then live = read('ZCARD', lock) end
  found[1] = {last[#last - 1], fence, left, '', -1, live}
end

for i = 1, #KEYS, 3 do
  local n = #out + 1
  out[n] = {}
  local fence = read('GETRANGE', KEYS[i + 1], 0, 18)
  if fence == '' then fence = nil end
  local owner = read('GETRANGE', KEYS[i], 0, 22)
  local left = read('PTTL', KEYS[i])
  if ARGV[n] == '1' then
    permits(out[n], KEYS[i])
  elseif type(fence) == 'string' and type(owner) == 'table' then
    readers(out[n], KEYS[i], fence)
  elseif type(fence) == 'string' and #owner == 22 and left > 0 then
    local meta = read('GETRANGE', KEYS[i + 2], 0, 4096)
    out[n][1] = {owner, fence, left, type(meta) == 'string' and #meta <= 4096 and meta or '', -1, 0}
  end
end
return out
