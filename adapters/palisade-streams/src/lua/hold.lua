-- Sets for how long a message counts as idle, if it is still the consumer's.
-- KEYS: the stream. ARGV: group, consumer, id, idle ms, deliveries so far (-1: as they are).
-- Returns 1, or 0 if somebody else has the message, or nobody.
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
