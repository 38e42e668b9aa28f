-- What acquire and release do that is not the common case.
-- KEYS, ARGV  as handed in by the op
-- Returns     per function what its comment says

-- The fence stood at `old` or a stranger's value stands there: what is given then.
local function above(lock, fence, old, p)
  local number = type(old) == 'string' and tonumber(old)
  if not number or number >= 1e18 then -- a stranger's: as it was, as far as can be
    if type(old) == 'string' then call('SET', fence, old) end
    call('DEL', lock)
    return WRONG_TYPE
  end
  -- Beyond what any honest clock gives, also before a backward step by twice E: written by somebody
  -- else, or by a clock that was wrong. Taken down to what such clocks reach: the asker does not
  -- count that yet, and will when its own clock has come so far.
  local most = now_us + 6 * clock_error + 1000000
  if number > most + 2 * clock_error then number = most end
  if number >= tonumber(p) then
    p = digits(number + 1)
    call('SET', fence, p, 'PX', fence_life)
  end
  return p
end

-- Soon after a handover: whether the lock, absent here, may still be held. Its lease may have ended
-- early by this clock, so the first who asks for a name that was used lately has it kept for as
-- long as clocks differ, once.
local function kept(lock, fence)
  if call('EXISTS', lock) == 1 or call('EXISTS', fence) == 0 then return false end
  if try('HSET', 'palisade:settled', lock, 1) == 0 then return false end
  call('PEXPIRE', 'palisade:settled', digits(settling - now_ms))
  call('SET', lock, KEPT, 'PX', digits(apart))
  return true
end

-- The lock is taken: by whom, and for how long.
local function refuse(lock, fence, owner, queue)
  local value = look(lock, 22)
  if value == owner then
    local given = stored(fence)
    -- Its fence outlives a lock, so somebody else deleted it.
    return put(given and given > 0 and given or WRONG_TYPE)
  end
  local ours = type(value) == 'string' and #value == 22 and not find(value, '[^%w_-]')
  local ms = call('PTTL', lock)
  put(ours and HELD or FOREIGN)
  put(ms)
  if queue then wait_for_hint(queue, ms >= 0 and ms + 1000 or 10000) end
end

-- The words of who releases go too: the next holder may have none, and would be shown with these.
local function forget(meta)
  if is_words(meta) then call('DEL', meta) end
end

-- Releases of which not each did what it was asked for, after those that did.
local function missed(k, a, count, each, found)
  local gone = {}
  for i = 1, count do
    local at = each * i - each + 1
    local lock, value = KEYS[k + at], found[at]
    if gone[lock] then -- the same was asked for twice, and found twice
      put(ABSENT)
    elseif value == ARGV[a + i] then
      gone[lock] = true
      put(DONE)
    elseif value or call('EXISTS', lock) == 1 then -- what is no text is not shown
      put(NOT_OWNER)
    else
      put(ABSENT)
    end
  end
end

-- Somebody waits for these.
local function wake(woken)
  for _, lock in ipairs(woken) do try('PUBLISH', 'palisade:changed', lock) end
end

-- An op or a run that came too late. Returns where the next one begins.
local function skip(kind, k, a)
  if kind == 'A' then
    local count = tonumber(ARGV[a + 2])
    for _ = 1, count do put(LATE) end
    return k + 2 * count, a + 3 + 2 * count
  end
  put(LATE)
  if kind == 'W' then return k + 3, a + 4 end
  local op = rarely()[kind]
  return k + op.keys, a + 1 + op.args
end
