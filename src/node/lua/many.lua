-- Several locks under one owner and one fencing token, all or none: acquire (N), raise the fences
-- (J), extend (K). A release is a run of releases (release_fast.lua).
-- KEYS  each lock, then in the same order the fence of each lock
-- ARGV  1 number of names  2 owner  3 ttl ms  4 N: proposed token; J, K: token of the owner
--       5 N: the owner of the names that this call has already collected one by one, or ''. If
--         there is such an owner, its names are free for this call, and so are names that are only
--         reserved for a waiter and need not be kept (is_kept)
--         K: name of the quarantine in which the owner may extend, or ''
-- Puts  N: the fence of all names
--          | HELD, ms until the last busy name may be free, -1 if a key does not expire
--          | FOREIGN, ms as for HELD: another program's value is under a lock's key
--          | QUARANTINED: a quarantine runs
--       J: DONE | NOT_OWNER: the owner lacks a lock, or a fence is above the token | QUARANTINED
--       K: DONE | NOT_OWNER: another owner has one of the locks
--          | QUARANTINED: a quarantine runs, and argument 5 does not name it
--       N, K: WRONG_TYPE: another program wrote a fence key
if find('NJK', kind, 1, true) then
  local n, owner, ttl = tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3]
  local last, values = k + n, {}
  for at = k + 1, last do values[at] = look(KEYS[at], '22') end

  local function is_anothers(value)
    return value and value ~= owner and not is_ownerless(value)
  end

  if kind == 'K' then
    for at = k + 1, last do if is_anothers(values[at]) then return put(NOT_OWNER) end end
    if not may_extend(ARGV[a + 5]) then return put(QUARANTINED) end
  elseif left > 0 then
    return put(QUARANTINED)
  end

  local token, fences = tonumber(ARGV[a + 4]), {}
  if kind ~= 'N' then
    for at = k + 1, last do
      local fence = stored(KEYS[at + n])
      if kind == 'J'
        and (values[at] ~= owner or not fence or fence > token or is_ahead(token))
      then
        return put(NOT_OWNER)
      end
      if not fence then return put(WRONG_TYPE) end
      fences[at] = fence > token and digits(fence) or ARGV[a + 4]
    end
    for at = k + 1, last do
      if kind == 'K' then call('SET', KEYS[at], owner, 'PX', ttl) end
      keep_fence(KEYS[at + n], fences[at])
    end
    return put(DONE)
  end

  -- The lock is only reserved for a waiter, or the owner `from` has it for no longer than this
  -- call's ttl.
  local from = ARGV[a + 5]
  local function is_given(lock, value)
    if from == '' or type(value) ~= 'string' then return false end
    if is_ownerless(value) then return value ~= KEPT end
    local ms = call('PTTL', lock)
    return value == from and ms >= 0 and ms <= tonumber(ttl)
  end

  local code, longest, mine = nil, 0, 0
  for at = k + 1, last do
    local lock, value = KEYS[at], values[at]
    -- A reserved lock has no owner, so after a planned handover it, too, may have to be kept for
    -- its old holder (quarantine 11).
    if from ~= '' and is_ownerless(value) and value ~= KEPT
      and kept_till(lock, KEYS[at + n]) > now_ms
    then
      call('DEL', lock)
      value = nil
    end
    if value == owner and from == '' then mine = mine + 1 end
    local is_busy = value and value ~= owner and not is_given(lock, value)
    if is_busy or not value and b.settling and is_kept(lock, KEYS[at + n]) then
      local ms = call('PTTL', lock)
      if value and not is_ours(lock, value) then code = FOREIGN else code = code or HELD end
      if ms == -1 or longest == -1 then longest = -1 else longest = math.max(longest, ms) end
    end
  end
  if code then
    put(code)
    return put(longest)
  end

  local most = 0
  for at = k + 1, last do
    local fence = stored(KEYS[at + n])
    if not fence then return put(WRONG_TYPE) end
    fences[at], most = fence, math.max(most, honest(fence))
  end
  local p
  if mine == n then
    -- A repeated request, because the owner already has all locks. A fence is kept longer than its
    -- lock, so without one another program has deleted them.
    if most == 0 then return put(WRONG_TYPE) end
    p = digits(most)
  else
    p = digits(math.max(tonumber(in_range(ARGV[a + 4])), most + 1))
    for at = k + 1, last do call('SET', KEYS[at], owner, 'PX', ttl) end
  end
  for at = k + 1, last do
    if mine < n or fences[at] ~= most then keep_fence(KEYS[at + n], p) end
  end
  return put(p)
end
