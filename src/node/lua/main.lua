-- Executes the ops of the batch in order; their keys and arguments follow one another. Neighbouring
-- acquires with one ttl are sent as one run: one kind, one number of ops, then the arguments of
-- each. So are neighbouring releases.
-- KEYS     from 3: the keys of the ops
-- ARGV     from 7: for each run or single op its kind (a letter), then
--          A, V, W, O (acquires): number of ops (only A: more than one), ttl and time for which
--          a fence is kept, both in ms, then the arguments of each op (acquire.lua)
--          D, Q, G (releases), S (shared acquires): number of ops, then as in release_fast.lua and
--          shared.lua
--          those of several letters: as in write.lua
--          all other kinds: the arguments of the op, as in its file
-- Returns  only the note, or the clock in µs if the script has not written the note, if every op
--          was executed as requested, on a fast path. Then each acquire has its proposal as its
--          fence.
--          Else, or if an op has no fast path or gives a shared lock or a permit, a list:
--          - the clock in µs
--          - the note
--          - for each op its result: a code (redis/codes.rs), and what the op's file documents. An
--            acquire or inspect that succeeds has its fence in place of the code, and an enlist the
--            number of entries. -9 stands once for a whole run, or for a single
--            op, that was executed as requested; -17 for one that was not executed, because an op
--            on one of its keys waits for its next plan. After -9 of a run of shared acquires
--            follows the fence of all its ops.
-- `b` is the state of the slow paths (batch.lua), `out` the list of results. Each is created when
-- it is needed.
local waited = tonumber(sub(note, 55, 67)) or 0
local b, out
if not expected then
  out = {now_us, note}
  b = batch(now_us, note, out)
  b.full = full
end
-- Each kind of single op, with the number of its KEYS and of its ARGV after the kind: one character
-- each; a colon is ten.
local sizes = 'I10 M21 E14 H34 P2: Y26 F23 U13'
local k, a, last, byte = 2, 6, #ARGV, string.byte
local whole = 0 -- number of runs executed as requested, while there is no list of results
local life -- ms for which a fence is kept, when it is first needed
local moot, room -- keys with an op that waits for its next plan; as in write.lua
while a < last do
  local kind, rest, count, keys, args, found, slot = ARGV[a + 1], true
  local class, own, more = byte(kind, 1, 3)
  local writes = class > 96 -- a small letter
  if writes then
    keys, args = own - 48, more - 47
  elseif kind == 'A' or kind == 'W' or kind == 'V' or kind == 'O' then
    count = tonumber(ARGV[a + 2])
    keys, args = kind == 'A' and 2 * count or 3, 4 + 2 * count
    if kind == 'W' or kind == 'O' then args = 9 end
  elseif kind == 'D' or kind == 'Q' then
    count = tonumber(ARGV[a + 2])
    keys, args = kind == 'D' and count or 2 * count, 2 + count
  elseif kind == 'S' then
    count, keys = tonumber(ARGV[a + 2]), 3
    args = 8 + count
  elseif kind == 'G' then
    count, keys = tonumber(ARGV[a + 2]), 2
    args = 2 + count
  elseif kind == 'N' or kind == 'J' or kind == 'K' then
    keys, args = 2 * ARGV[a + 2], 6
  else
    local size = find(sizes, kind, 1, true)
    keys, args = byte(sizes, size + 1) - 48, byte(sizes, size + 2) - 47
  end
  local behind
  if moot and not writes then
    for i = k + 1, k + keys do behind = behind or moot[KEYS[i]] end
  end
  if behind then
    for i = k + 1, k + keys do moot[KEYS[i]] = true end
    rest, found = nil, -17
  elseif writes then
    local key, left = KEYS[k + 1], nil
    found, slot, left = write(k, a, now_us, b, full, counted, moot and moot[key], room or 1048576,
      release, wake)
    rest, room = nil, left or room
    if found == 0 and class ~= 114 then -- r
      moot = moot or {}
      moot[key] = true
    end
  elseif kind == 'D' or kind == 'Q' then
    rest = kind == 'D' and 1 or 2
    found = release(k, a, count, rest, (b and b.waited or waited) * 1000 > now_us, wake, now_us)
    if not found then rest = nil end
  elseif find('AVWO', kind, 1, true) then
    rest = 0
    -- Else a fair caller with a smaller ticket may be ahead, or this caller's place has to be kept.
    if expected and (kind ~= 'O' or ARGV[a + 7] == '' and waited * 1000 <= now_us) then
      local reserved = (kind == 'W' or kind == 'O') and '------' .. ARGV[a + 8]
      rest, found = acquire(k, a, count, reserved)
    end
  elseif expected and find('SGFPYNKH', kind, 1, true) then
    if count then rest = 0 end
    if find('PYNKH', kind, 1, true) or (b and b.waited or waited) * 1000 <= now_us then
      if kind ~= 'G' then
        life = life or string.match(ARGV[4], '^%d+ %d+ %d+ (%d+)')
      end
      rest, found, slot = fast(kind, k, a, count, marker, now_us, life, time[1])
    end
  elseif count then
    rest = 0
  end
  if (rest or found) and not out then
    out = {now_us, note}
    for _ = 1, whole do out[#out + 1] = -9 end
  end
  if rest then
    b = b or batch(now_us, note, out)
    rare(b, kind, k, a, count, rest, found, release, wake)
  elseif found then -- of a write; the fence of readers, or the fence and the slot of a permit
    if kind == 'S' and not behind then out[#out + 1] = -9 end
    out[#out + 1] = found
    if type(slot) == 'table' then
      for _, value in ipairs(slot) do out[#out + 1] = value end
    else
      out[#out + 1] = slot
    end
  elseif out then
    out[#out + 1] = -9
  else
    whole = whole + 1
  end
  k, a = k + keys, a + args
end
return out or counted or now_us
