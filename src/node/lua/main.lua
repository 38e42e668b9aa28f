-- Executes the ops of the batch in order; their keys and arguments follow one another. Neighbouring
-- acquires with one ttl are sent as one run: one kind, one number of ops, then the arguments of
-- each. So are neighbouring releases.
-- KEYS     from 3: the keys of the ops
-- ARGV     from 7: for each run or single op its kind (a letter), then
--          A (acquires), D, Q, G (releases): as in acquire.lua, release.lua, leave.lua
--          those of several letters: as in write.lua
--          all other kinds: the arguments of the op, as in its file
-- Returns  only the note, or the clock in µs if the script has not written the note, if every op
--          was executed as requested. Then each acquire has its proposal as its fence.
--          Else, or if an op shows something, a list:
--          - the clock in µs
--          - the note
--          - for each run or single op its result: a code (redis/codes.rs), and what the op's file
--            documents. -9 stands for one that was executed as requested; -17 for one that was not
--            executed, because an op on one of its keys waits for its next plan
-- `b` is the state of the slow paths (batch.lua), `out` the list of results. Each is created when
-- it is needed.
local waited = tonumber(sub(note, 55, 67)) or 0
local function as_asked(now_us, note, whole)
  local out = {now_us, note}
  for _ = 1, whole do out[#out + 1] = -9 end
  return out
end
local b, out
if not expected then
  out = {now_us, note}
  b = batch(now_us, note, out)
  b.full = full
end
-- Each kind of single op, with the number of its KEYS and of its ARGV after the kind: one character
-- each; a semicolon is eleven.
local sizes = 'E14 P2; Y26 F23 U13'
local k, a, last, byte = 2, 6, #ARGV, string.byte
local whole = 0 -- number of runs executed as requested, while there is no list of results
local life -- ms for which a fence is kept, when it is first needed
local moot, room -- keys with an op that waits for its next plan; as in write.lua
while a < last do
  local kind, rest, count, keys, args, found, slot, names = ARGV[a + 1]
  local class, own, low, high, _, joins, n = byte(kind, 1, 7)
  local writes = class > 96 -- a small letter
  if writes then
    keys, args, names = own - 48, low - 47 + 64 * (high - 48), n - 48
  elseif kind == 'A' or kind == 'D' or kind == 'Q' or kind == 'G' then
    count = tonumber(ARGV[a + 2])
    keys = kind == 'D' and count or kind == 'G' and 2 or 2 * count
    args = kind == 'A' and 4 + 2 * count or 2 + count
  else
    local size = find(sizes, kind, 1, true)
    keys, args = byte(sizes, size + 1) - 48, byte(sizes, size + 2) - 47
  end
  local behind, waits = nil, (b and b.waited or waited) * 1000 > now_us
  if moot then
    for i = k + 1, k + keys do behind = behind or moot[KEYS[i]] end
  end
  if behind and not writes then
    found = -17
  elseif writes then
    local left
    found, slot, left = write(k, a, now_us, b, full, counted, expected, behind, room or 1048576,
      waits, show, acquire, release, wake)
    room = left or room
    behind = found == 0 and class ~= 114 -- r
    if joins ~= 45 and (found == 2 or joins == 97 and (not found or found >= 0)) then -- -, a
      b = b or batch(now_us, note, out)
      out = out or as_asked(now_us, note, whole)
      b.out = out
      join(b, KEYS[k + 1], KEYS[k + keys], a + args - 5)
    end
  elseif kind == 'A' then
    if b and b.late then
      found = -10
    else
      local odd = not expected and {} or acquire(k, a, count)
      if odd then
        slot = {}
        for i = 1, count do
          local lock, is = KEYS[k + 2 * i - 1], not expected and 0 or odd[i]
          if is == 0 or is == 2 then
            local at = #slot + 1
            slot[at] = is
            show(slot, lock, KEYS[k + 2 * i])
            -- Nor can another plan take what somebody has.
            if not expected and slot[at + 1] then slot[at] = 2 end
            if slot[at] == 0 then
              moot = moot or {}
              moot[lock] = true
            end
          else
            slot[#slot + 1] = 1
            slot[#slot + 1] = is or ARGV[a + 4 + 2 * i]
          end
        end
      end
    end
  elseif kind == 'D' or kind == 'Q' then
    slot = release(k, a, count, kind == 'D' and 1 or 2, waits, wake, now_us)
  elseif kind == 'G' then
    slot = leave(k, a, count, waits, release, wake, now_us)
  elseif expected and (find('PY', kind, 1, true) or kind == 'F' and not waits) then
    life = life or string.match(ARGV[4], '^%d+ %d+ %d+ (%d+)')
    rest, found, slot = fast(kind, k, a, now_us, life, time[1])
  else
    rest = 0
  end
  if behind then
    moot = moot or {}
    for i = k + 1, k + (names or keys) do moot[KEYS[i]] = true end
  end
  if (rest or found or slot) and not out then
    out = as_asked(now_us, note, whole)
    if b then b.out = out end
  end
  if rest then
    b = b or batch(now_us, note, out)
    rare(b, kind, k, a, join)
  elseif found or slot then -- of a write or a run; or the fence and the slot of a permit
    out[#out + 1] = found
    if type(slot) == 'table' then
      for i = 1, #slot do out[#out + 1] = slot[i] end
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
