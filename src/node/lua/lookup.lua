-- Reads an idempotency record.
-- KEYS  1 record
-- ARGV  1 fingerprint of the request, or '' to accept any
-- Puts  the fence (highest ballot), the number of attempts, ms left of the claim's lease or -1, and
--       the ballot of the result or 0. If there is a result: its value, or false if only the fact
--       is kept
--       | ABSENT | WRONG_TYPE: the key belongs to another program (records.lua puts it)
--       | MISMATCH: the record has another fingerprint | DEFERRED: the answer is full, ask again
if kind == 'L' then
  if not h[2] then return put(ABSENT) end
  if is_anothers(ARGV[a + 1]) then return put(MISMATCH) end
  local value = rf and shown()
  if value == nil then return end
  put(fence)
  put(attempt)
  put(till > now_ms and till - now_ms or -1)
  put(rf or 0)
  if rf then put(value) end
end
