-- Removes consumers without pending entries. A consumer name is never used again.
-- KEYS: the stream. ARGV: group, minimum idle time in ms, the consumer's name or '' for all.
-- Returns the number of removed consumers.
local removed = 0
for _, facts in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local of = {}
  for i = 1, #facts, 2 do
    of[facts[i]] = facts[i + 1]
  end
  local meant = ARGV[3] == '' or ARGV[3] == of['name']
  if meant and of['pending'] == 0 and of['idle'] >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], of['name'])
    removed = removed + 1
  end
end
return removed
