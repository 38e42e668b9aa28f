-- Takes over what was left pending for too long, with how often each was delivered.
-- KEYS: the stream. ARGV: group, consumer, how long in ms, where to begin, how many at most; then
-- in bytes how large one entry may be, all of them together, and what each name and value adds.
-- Returns where to go on, and {id, fields, deliveries, size if it is too large, else 0} for each.
-- Of an entry that is too large only short fields that name it are returned. An entry beyond the
-- byte budget stays claimable at once, and its delivery is not counted. Those that were deleted
-- from the stream are acknowledged.
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
