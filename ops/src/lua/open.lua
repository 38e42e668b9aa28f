-- Opens the server that this handover has closed: the server accepts requests again.
-- KEYS  1 palisade:generation, the marker (facts about the server's data; also if it is closed)
-- ARGV  1 value of the marker that close.lua wrote
-- Returns  {'ok'} | {'no', why}
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'no', 'it is no longer closed by this handover'}
end
redis.call('SET', KEYS[1], string.sub(ARGV[1], 1, 112) .. '-0000000000000'
  .. string.sub(ARGV[1], 127))
return {'ok'}
