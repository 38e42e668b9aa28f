-- Reads an idempotency record.
-- KEYS  1 record
-- ARGV  1 fingerprint or ''
-- Puts  fence, attempt, ms left of the lease or -1, rf (the result's ballot) or 0, value or false
--       if rf > 0 | ABSENT | WRONG_TYPE | MISMATCH | DEFERRED
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
