-- Precedes the scripts that look at keys of any program. What cannot be read is not missing: only
-- the error for a value of another type is returned. The text of any other error names the command,
-- which servers before Redis 7.2 do not.
-- KEYS, ARGV  not read
-- Returns     nothing
local function fail(why, command)
  why = string.gsub(why, '^ERR ', '')
  error(why .. " (run the '" .. string.lower(command) .. "' command)", 0)
end

local function read(...)
  local v = redis.pcall(...)
  if type(v) == 'table' and v.err and not string.find(v.err, 'WRONGTYPE', 1, true) then
    fail(v.err, (...))
  end
  return v
end

