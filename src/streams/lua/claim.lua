-- Takes over what was left pending for too long, with how often each was delivered.
-- KEYS: the stream. ARGV: group, consumer, how long in ms, where to begin, how many at most.
-- Returns where to go on, and {id, fields, deliveries} for each; those that were deleted from the
-- stream are acknowledged on the way.
local stream, group, count = KEYS[1], ARGV[1], tonumber(ARGV[5])
local taken = redis.call('XAUTOCLAIM', stream, group, ARGV[2], ARGV[3], ARGV[4], 'COUNT', count)
local out = {}
for _, entry in ipairs(taken[2]) do
  if entry and entry[2] then
    local pending = redis.call('XPENDING', stream, group, entry[1], entry[1], 1)
    out[#out + 1] = {entry[1], entry[2], pending[1] and pending[1][4] or 1}
  end
end
return {taken[1], out}
