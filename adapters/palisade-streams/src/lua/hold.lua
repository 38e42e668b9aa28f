-- Sets the idle time of an entry, if the entry is still pending for this consumer.
-- KEYS: the stream. ARGV: group, consumer, id, idle time in ms, delivery count (-1: unchanged).
-- Returns 1. Returns 0 if the entry is pending for another consumer or is not pending.
local stream, group, me, id = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
if #redis.call('XPENDING', stream, group, id, id, 1, me) == 0 then
  return 0
end
local deliveries = tonumber(ARGV[5])
if deliveries < 0 then
  redis.call('XCLAIM', stream, group, me, 0, id, 'IDLE', ARGV[4], 'JUSTID')
else
  local idle = {'IDLE', ARGV[4], 'RETRYCOUNT', deliveries, 'JUSTID'}
  redis.call('XCLAIM', stream, group, me, 0, id, unpack(idle))
end
return 1
