-- Executes a conditional write (src/store/write.rs): what the client assumes of one key, and what
-- is to be written then. No rule is here. No upvalues (helpers.lua).
-- KEYS     1 the key
-- ARGV     1 kind (C)  2 class: g grant (refused where the memory is full), k keep, u undo
--          (executed after the deadline, too), r read  3 number of ARGV of its steps, which follow:
--          A               the key is absent
--          E value         it begins with this value
--          T from until    the clock is in this range (µs)
--          V               the answer has room for the value, and shows it
--          X ms            keeps the key for at least this time
--          W at            wakes who waits, if the byte at this offset says so
--          S ms v lease w  writes the whole value, for ms or for as long as the last one: v, and
--          O at v lease w  writes a part; with a lease also its end in 13 digits, and w
--          behind the steps the last byte to show if a condition does not hold, and position and
--          value of the byte with which the whole value is shown, or '' twice
--          Parameters: `b`: state of the batch, if there is one; `full`, `counted`: as in
--          prelude.lua; `moot`: an earlier op on this key waits for its next plan; `room`: bytes
--          that the answer still takes
-- Returns  nothing if all steps ran; else a code, what is there (false if nothing is), and the room
--          that is left: 1 the steps ran, with V; 0 a condition does not hold; -5 another program's
--          value; -10 late; -16 the memory is full
local function write(k, a, now_us, b, full, counted, moot, room)
  local KEYS, ARGV, call, try, sub = KEYS, ARGV, redis.call, redis.pcall, string.sub
  local key, class, s = KEYS[k + 1], ARGV[a + 2], a + 3
  local stop = s + ARGV[a + 3]
  local ok, value = s < stop and not moot
  if b and b.late and class ~= 'u' then return -10 end
  while ok and s < stop do
    local kind = ARGV[s + 1]
    if kind == 'A' then
      ok, s = call('EXISTS', key) == 0, s + 1
    elseif kind == 'E' then
      local begin = ARGV[s + 2]
      ok, s = try('GETRANGE', key, '0', #begin - 1) == begin, s + 2
    elseif kind == 'T' then
      ok, s = now_us >= tonumber(ARGV[s + 2]) and now_us <= tonumber(ARGV[s + 3]), s + 3
    elseif kind == 'V' then
      local size = call('STRLEN', key)
      ok, s = room > 0 and size <= room or room == 1048576, s + 1
      if ok then value, room = call('GETRANGE', key, '0', '-1'), room - size end
    elseif full and class == 'g' then
      return -16
    else
      -- Where the memory is full a server refuses only the first write of a script.
      if class == 'u' and not counted then call('DEL', 'palisade:none') end
      counted = true
      if kind == 'X' then
        local ms = ARGV[s + 2]
        if call('PTTL', key) < tonumber(ms) then call('PEXPIRE', key, ms) end
        s = s + 2
      elseif kind == 'W' then
        local at = ARGV[s + 2]
        if call('GETRANGE', key, at, at) == 'w' then
          call('SETRANGE', key, at, '-')
          try('PUBLISH', 'palisade:changed', key)
        end
        s = s + 2
      else
        local text, lease = ARGV[s + 3], ARGV[s + 4]
        if lease ~= '' then
          text = text .. string.format('%013.0f', math.floor(now_us / 1000) + lease) .. ARGV[s + 5]
        end
        if kind == 'O' then call('SETRANGE', key, ARGV[s + 2], text)
        elseif ARGV[s + 2] == '' then call('SET', key, text, 'KEEPTTL')
        else call('SET', key, text, 'PX', ARGV[s + 2]) end
        s = s + 5
      end
    end
  end
  if ok then
    if value then return 1, value, room end
    return
  end
  local last, at, letter = ARGV[stop + 1], ARGV[stop + 2], ARGV[stop + 3]
  value = try('GETRANGE', key, '0', last)
  if value.err then
    if string.find(value.err, 'WRONGTYPE', 1, true) then return -5 end
    call('GETRANGE', key, '0', last)
  end
  if value == '' and call('EXISTS', key) == 0 then return 0, false, room end
  if at ~= '' and sub(value, at, at) == letter and #value > tonumber(last) then
    local size = call('STRLEN', key)
    if size > 9437184 then return -5 end
    if room > 0 and size <= room or room == 1048576 then
      value, room = call('GETRANGE', key, '0', '-1'), room - size
    else
      room = 0 -- leaves out all later results, too, so that this one is not overtaken for ever
    end
  end
  return 0, value, room
end
