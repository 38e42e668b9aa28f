-- End a claim's lease before its time.
-- KEYS  1 record
-- ARGV  1 owner  2 the attempt: u did nothing, r may be repeated, l may have acted
-- Puts  DONE | NOT_OWNER | ABSENT | WRONG_TYPE
local function unclaim(k, a)
  local key, ends = KEYS[k + 1], ARGV[a + 2]
  local h = record(key)
  if not h then return end
  if not h[2] then return put(ABSENT) end
  local till, attempt = tonumber(h[3]) or 0, tonumber(h[4]) or 0
  if h[1] ~= ARGV[a + 1] or h[5] or till == 0 then return put(NOT_OWNER) end
  if ends ~= 'l' and attempt > 0 then attempt = attempt - 1 end
  -- Without an owner nothing that is under way prolongs or completes it.
  call('HSET', key, 'own', '', 'till', '0', 'att', attempt)
  if attempt == 0 and ends == 'u' then
    -- As if never claimed, but the promise must outlive every late request.
    call('HDEL', key, 'fp')
    call('PEXPIRE', key, fence_life)
  end
  put(DONE)
end
