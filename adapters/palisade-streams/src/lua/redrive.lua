-- Moves dead letters that were forgotten back into their stream, in one step, without the fields
-- that made them dead letters.
-- KEYS: the stream of dead letters, the stream. ARGV: where to begin, where to end, how many are
-- looked at. Returns where to go on (empty: nowhere), how many were moved, and how many stay for
-- their entry is not whole.
local looked = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
local on, moved, stay = '', 0, 0
for _, entry in ipairs(looked) do
  local id, all = entry[1], entry[2]
  -- The last three fields are the dead letter's own; behind them what an entry is that has no room.
  local whole = #all - 5
  if all[whole] == 'reason' and all[whole + 1] == 'forgotten' and whole > 1 then
    -- First: if it fails, the dead letter is still there.
    redis.call('XADD', KEYS[2], '*', unpack(all, 1, whole - 1))
    redis.call('XDEL', KEYS[1], id)
    moved = moved + 1
  elseif all[#all - 1] == 'left_out' and all[whole - 1] == 'forgotten' then
    stay = stay + 1
  end
  on = '(' .. id
end
return {on, moved, stay}
