-- Changes records of idempotency keys, if neither they nor the marker were changed since they were
-- read. A record is changed in one write, so whole or not at all.
-- KEYS     1 palisade:generation, the marker, then records
-- ARGV     1 the marker as it was read   2 the server's time in ms after which the script changes
--          nothing; then for each record: what it has to begin with; the text to write there; '1'
--          to remove what follows this text
-- Returns  a word for each record: done | changed | late | broken: the server refused the write
local time, marker = read('TIME'), read('GETRANGE', KEYS[1], '0', '1000')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local same = (type(marker) == 'string' and marker or '') == ARGV[1]

-- If the server refuses the first write of the script, nothing was changed, and the script fails.
local wrote = false
local function write(...)
  local reply = redis.pcall(...)
  local why = type(reply) == 'table' and reply.err
  if why and wrote then return 'broken' end
  if why and string.find(why, 'run this command', 1, true) then fail(why, (...)) end
  if why then redis.call(...) end
  wrote = true
  return 'done'
end

-- All reads come before the first write: an error of the script itself would hide which keys are
-- changed.
local out, begun = {}, {}
for i = 2, #KEYS do begun[i] = read('GETRANGE', KEYS[i], '0', #ARGV[3 * i - 3] - 1) end
for i = 2, #KEYS do
  local key, begins, text, whole = KEYS[i], unpack(ARGV, 3 * i - 3, 3 * i - 1)
  if now > tonumber(ARGV[2]) then
    out[i - 1] = 'late'
  elseif not same or begun[i] ~= begins then
    out[i - 1] = 'changed'
  elseif whole == '1' then
    out[i - 1] = write('SET', key, text, 'KEEPTTL')
  else
    out[i - 1] = write('SETRANGE', key, '0', text)
  end
end
return out
