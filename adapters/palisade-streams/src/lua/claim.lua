-- Takes over entries that were pending for too long.
-- KEYS: the stream. ARGV: group, consumer, idle time in ms, start position, maximum number of
-- entries; then in bytes: the maximum size of an entry, the maximum size of all entries together,
-- and the size that is added for each name and value.
-- Returns the next start position, and for each entry {id, fields, delivery count, size}. The size
-- is 0 unless the entry is too large.
-- If an entry is too large, `fields` contains only the short fields that identify the entry. An
-- entry that does not fit within the maximum size of all entries is not returned: its delivery is
-- not counted, and any consumer can claim the entry at once. Entries that were deleted from the
-- stream are acknowledged.
local stream, group, me, idle = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local largest, left, piece = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local function size_of(fields)
  local size = piece * #fields
  for _, text in ipairs(fields) do
    size = size + #text
  end
  return size
end

local function names_of(fields)
  local short = {}
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    if (name == 'key' or name == 'created') and #value <= 1024 and #short < 8 then
      short[#short + 1] = name
      short[#short + 1] = value
    end
  end
  return short
end

local taken = redis.call('XAUTOCLAIM', stream, group, me, idle, ARGV[4], 'COUNT', ARGV[5])
local out = {}
for _, entry in ipairs(taken[2]) do
  if entry and entry[2] then
    local id, fields = entry[1], entry[2]
    local pending = redis.call('XPENDING', stream, group, id, id, 1)
    local deliveries = pending[1] and pending[1][4] or 1
    local size = size_of(fields)
    if size > largest then
      out[#out + 1] = {id, names_of(fields), deliveries, size}
    elseif size > left then
      redis.call('XCLAIM', stream, group, me, 0, id, 'IDLE', idle, 'RETRYCOUNT', deliveries - 1,
        'JUSTID')
    else
      left = left - size
      out[#out + 1] = {id, fields, deliveries, 0}
    end
  end
end
return {taken[1], out}
