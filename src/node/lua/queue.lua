-- Helper of the slow paths of permits.
-- KEYS, ARGV  not read
-- Returns     see the comment of the function

-- False if another program wrote it.
local function queued(queue)
  local v = look(queue, '3120') or '0'
  return type(v) == 'string' and #v % 48 == 1 and find(v, '^[01]') and v
end
