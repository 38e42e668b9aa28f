-- Sets the idle time of an entry, if the entry is still pending for this consumer's delivery.
-- KEYS: the stream. ARGV: group, consumer, id, delivery count, idle time in ms, new delivery count
-- (-1: unchanged).
-- Returns 1. Returns 0 if the entry is not pending for this consumer, or was delivered again since.
local stream, group, me, id = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local mine = redis.call('XPENDING', stream, group, id, id, 1, me)
if #mine == 0 or mine[1][4] ~= tonumber(ARGV[4]) then
  return 0
end
local deliveries = tonumber(ARGV[6])
if deliveries < 0 then
  redis.call('XCLAIM', stream, group, me, 0, id, 'IDLE', ARGV[5], 'JUSTID')
else
  local idle = {'IDLE', ARGV[5], 'RETRYCOUNT', deliveries, 'JUSTID'}
  redis.call('XCLAIM', stream, group, me, 0, id, unpack(idle))
end
return 1
