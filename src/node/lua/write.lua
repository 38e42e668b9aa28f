-- Executes a conditional write (src/store/write.rs): what the client assumes of a record or of the
-- keys of a lock, and what is to be written then. No rule is here. No upvalues (helpers.lua).
-- KEYS     the main one; of a lock that is shown the fence, and its metadata; of one that publishes
--          the queue as the fourth, of one that releases the queue as the second
-- ARGV     1 its form: one character each for the class (g grant: refused where the memory is full,
--          k keep, u undo: executed after the deadline, too, r read), the number of KEYS, that of
--          ARGV behind this one (a colon is ten), and what to show if a condition does not hold;
--          then for each step its letter and the number of its key. Behind it the ARGV of the
--          steps:
--          A               the key is absent
--          E value         it begins with this value
--          I value         it has this value
--          B number        it is absent, or a whole number of at most this
--          L ms            it expires within this time
--          Q               no note says until when the lock is kept after a handover
--          Z member        it is a set, and this member's end is ahead
--          T from until    the clock is in this range (µs)
--          V               the answer has room for the value, and shows it
--          X ms            keeps the key for at least this time
--          P ms            keeps it for this time
--          M ms            keeps it for this time, if it has metadata
--          H till end      notes until when the lock is kept; the note ends with settling (ms)
--          D               deletes it, if it has metadata
--          U owner         deletes the lock if it has this owner, and wakes who waits if it is free
--                          then, also if it was; if it was not the owner's, no step behind it runs
--          N text ms       writes metadata; tells who watches the lock if there were others
--          F number ms     writes the number, to be kept for at least this time
--          W at            wakes who waits, if the byte at this offset says so
--          S ms v lease w  writes the whole value, for ms or for as long as the last one: v, and
--          O at v lease w  writes a part; with a lease also its end in 13 digits, and w
--          What to show: of a record (r, with three ARGV behind the steps) the first bytes, to the
--          last that is given; or all, if the byte at this position has this value, or '' twice.
--          The lock (l), its fence, too (f, or m if the reader of the last ARGV has the lock), its
--          metadata, too, and all readers or permits (i); with until when it is kept (s, k)
--          Parameters: `b`: state of the batch, if there is one; `full`, `counted`: as in
--          prelude.lua; `moot`: an earlier op on this key waits for its next plan; `room`: bytes
--          that the answer still takes
-- Returns  nothing if all steps ran; else a code, what is there (false if nothing is, a table of
--          several values), and the room that is left: 1 the steps ran, with V; 0 a condition does
--          not hold; -5 another program's value; -10 late; -12 no room; -16 the memory is full
local function write(k, a, now_us, b, full, counted, moot, room, release, wake)
  local KEYS, ARGV, call, try = KEYS, ARGV, redis.call, redis.pcall
  local sub, byte, find = string.sub, string.byte, string.find
  local shape, s, i = ARGV[a + 1], a + 1, 5
  local class, last = byte(shape), #shape
  local ok, value = last > 4 and not moot
  if class == 117 then -- u
    -- Where the memory is full a server refuses only the first write of a script.
    if not counted then call('DEL', 'palisade:none') end
  elseif b and b.late then
    return -10
  end
  while ok and i < last do
    local kind, key = byte(shape, i, i + 1)
    i, key = i + 2, KEYS[k + key - 48]
    if kind == 73 then -- I
      ok, s = try('GETRANGE', key, '0', #ARGV[s + 1]) == ARGV[s + 1], s + 1
    elseif kind == 65 then -- A
      ok = call('EXISTS', key) == 0
    elseif kind == 69 then -- E
      local begin = ARGV[s + 1]
      ok, s = try('GETRANGE', key, '0', #begin - 1) == begin, s + 1
    elseif kind == 84 then -- T
      ok, s = now_us >= tonumber(ARGV[s + 1]) and now_us <= tonumber(ARGV[s + 2]), s + 2
    elseif kind == 66 then -- B
      local v = try('GETRANGE', key, '0', '18')
      if v == '' then
        ok = call('EXISTS', key) == 0
      else
        ok = not v.err and #v < 19 and find(v, '^%d+$') and tonumber(v) <= tonumber(ARGV[s + 1])
      end
      s = s + 1
    elseif kind == 81 then -- Q
      ok = not call('HMGET', 'palisade:settled', key)[1]
    elseif kind == 76 then -- L
      local left = call('PTTL', key)
      ok, s = left >= 0 and left <= tonumber(ARGV[s + 1]), s + 1
    elseif kind == 90 then -- Z
      local till = try('ZSCORE', key, ARGV[s + 1])
      ok, s = type(till) == 'string' and till * 1000 > now_us, s + 1
    elseif kind == 86 then -- V
      local size = call('STRLEN', key)
      ok = room > 0 and size <= room or room == 1048576
      if ok then value, room = call('GETRANGE', key, '0', '-1'), room - size end
    elseif full and class == 103 then -- g
      return -16
    else
      if kind == 80 then -- P
        call('PEXPIRE', key, ARGV[s + 1])
        s = s + 1
      elseif kind == 77 or kind == 68 then -- M, D
        -- A string with an expiry, unlike most keys of other programs.
        if call('EXISTS', key) == 1 and call('PTTL', key) >= 0
          and not try('GETRANGE', key, '0', '0').err
        then
          if kind == 68 then call('DEL', key) else call('PEXPIRE', key, ARGV[s + 1]) end
        end
        if kind == 77 then s = s + 1 end
      elseif kind == 72 then -- H
        call('PEXPIRE', 'palisade:none', '1') -- who may not do that leaves no note without an end
        call('HSET', 'palisade:settled', key, ARGV[s + 1])
        local rest = ARGV[s + 2] - math.floor(now_us / 1000)
        call('PEXPIRE', 'palisade:settled', string.format('%.0f', rest))
        s = s + 2
      elseif kind == 85 then -- U
        ok, s = not release(k, s - 2, 1, 2, nil, wake, now_us), s + 1
      elseif kind == 88 then -- X
        local ms = ARGV[s + 1]
        if call('PTTL', key) < tonumber(ms) then call('PEXPIRE', key, ms) end
        s = s + 1
      elseif kind == 70 then -- F
        call('SET', key, ARGV[s + 1], 'PX', math.max(ARGV[s + 2], call('PTTL', key)))
        s = s + 2
      elseif kind == 87 then -- W
        local at = ARGV[s + 1]
        if call('GETRANGE', key, at, at) == 'w' then
          call('SETRANGE', key, at, '-')
          try('PUBLISH', 'palisade:changed', key)
        end
        s = s + 1
      elseif kind == 78 then -- N
        local text, queue = ARGV[s + 1], KEYS[k + 4]
        local same = try('GETRANGE', key, '0', #text) == text
          and (text ~= '' or call('EXISTS', key) == 1)
        local waiting = try('GETRANGE', queue, '0', '3120')
        call('SET', key, text, 'PX', ARGV[s + 2])
        if not same and not waiting.err and sub(waiting, 1, 1) == '1' and #waiting % 48 == 1 then
          if waiting == '1' then call('DEL', queue)
          else call('SET', queue, '0' .. sub(waiting, 2), 'KEEPTTL') end
          try('PUBLISH', 'palisade:changed', KEYS[k + 1])
        end
        s = s + 2
      else
        local text, lease = ARGV[s + 2], ARGV[s + 3]
        if lease ~= '' then
          text = text .. string.format('%013.0f', math.floor(now_us / 1000) + lease) .. ARGV[s + 4]
        end
        if kind == 79 then call('SETRANGE', key, ARGV[s + 1], text)
        elseif ARGV[s + 1] == '' then call('SET', key, text, 'KEEPTTL')
        else call('SET', key, text, 'PX', ARGV[s + 1]) end
        s = s + 4
      end
    end
  end
  if ok then
    if value then return 1, value, room end
    return
  end

  -- Nil if the key has another type.
  local function ask(...)
    local v = try(...)
    if type(v) ~= 'table' or not v.err then return v end
    if not find(v.err, 'WRONGTYPE', 1, true) then call(...) end
  end

  -- False if there is no key, -5 if it has another type.
  local function read(key, to)
    local v = ask('GETRANGE', key, '0', to)
    if not v then return -5 end
    return (v ~= '' or call('EXISTS', key) == 1) and v
  end

  local key, stop = KEYS[k + 1], a + byte(shape, 3) - 47
  local what = sub(shape, 4, 4)
  local is_whole = what == 'i' or what == 'k'
  if what ~= 'r' then
    value = read(key, is_whole and '13056' or '22')
    local left, all = call('PTTL', key), {value}
    local first = is_whole and '-64' or '-1'
    local top = value == -5 and left >= 0 and ask('ZRANGE', key, first, '-1', 'WITHSCORES')
    if top and top[1] and #top[1] == 22 and not find(top[1], '[^%w_-]') then
      local till = what == 'm' and call('ZSCORE', key, ARGV[stop])
      if till then top = {ARGV[stop], till} end
      all = {#top / 2, call('ZCARD', key), unpack(top)}
    elseif value and value ~= -5 and #value > 23 and not find(value, '^%d', 23) then
      all[1] = sub(value, 1, 23)
    end
    all[#all + 1] = left
    all[#all + 1] = what ~= 'l' and read(KEYS[k + 2], '18')
    if is_whole then
      local meta = read(KEYS[k + 3], '67584')
      meta = meta ~= -5 and meta and #meta <= 67584 and meta
      if meta and not (room > 0 and #meta <= room or room == 1048576) then return -12, nil, 0 end
      all[#all + 1], room = meta, room - (meta and #meta or 0)
    end
    if what == 's' or what == 'k' then
      local kept = ask('HMGET', 'palisade:settled', key)
      all[#all + 1] = kept and kept[1] or false
    end
    return 0, all, room
  end
  local to, at, letter = ARGV[stop - 2], ARGV[stop - 1], ARGV[stop]
  value = read(key, to)
  if value == -5 then return -5 end
  if value and at ~= '' and sub(value, at, at) == letter and #value > tonumber(to) then
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
