-- Moves dead letters with the reason 'forgotten' (nodes had lost data) back into their stream, in
-- one step. Removes the fields that were added to the entry for the dead letter.
-- KEYS: the stream of dead letters, the stream. ARGV: start position, end position, maximum number
-- of dead letters to read.
-- Returns the next start position (empty at the end), the number of moved entries, and the number
-- of dead letters that stay. A dead letter stays if it does not contain its whole entry.
local looked = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
local on, moved, stay = '', 0, 0
for _, entry in ipairs(looked) do
  local id, all = entry[1], entry[2]
  -- The last three fields were added to the entry for the dead letter. If the entry is incomplete,
  -- the field `left_out` follows these three fields.
  local whole = #all - 5
  if all[whole] == 'reason' and all[whole + 1] == 'forgotten' and whole > 1 then
    -- Add the entry before the dead letter is deleted. If XADD fails, the dead letter is still
    -- there.
    redis.call('XADD', KEYS[2], '*', unpack(all, 1, whole - 1))
    redis.call('XDEL', KEYS[1], id)
    moved = moved + 1
  elseif all[#all - 1] == 'left_out' and all[whole - 1] == 'forgotten' then
    stay = stay + 1
  end
  on = '(' .. id
end
return {on, moved, stay}
