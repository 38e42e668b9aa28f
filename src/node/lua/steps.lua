-- Stores the finished steps of a handler, unless a higher ballot was promised, or the record has
-- another fingerprint or a result. Of two lists of one ballot the longer one stays, because a
-- repeated request may arrive after a later one.
-- KEYS  1 record
-- ARGV  1 owner  2 ballot  3 the steps  4 ms to keep the record for  5 fingerprint or ''
-- Puts  DONE | NOT_OWNER | WRONG_TYPE | MISMATCH
if kind == 's' then
  if is_anothers(ARGV[a + 5]) then return put(MISMATCH) end
  if rf or is_overtaken(tonumber(ARGV[a + 2]), ARGV[a + 1]) then return put(NOT_OWNER) end
  if steps == ARGV[a + 2] and call('HSTRLEN', key, 'val') >= #ARGV[a + 3] then return put(DONE) end
  call('HSET', key, 'own', ARGV[a + 1], 'fence', ARGV[a + 2], 'till', digits(till), 'att',
    math.max(attempt, 1), 'g', b.id, 'rf', 's' .. ARGV[a + 2], 'val', ARGV[a + 3])
  know(ARGV[a + 5])
  -- The running lease may be another owner's, whose claim kept the record for less time. The record
  -- has to outlast it by the retention, because complete_fast.lua does not keep it for longer.
  keep(digits(ARGV[a + 4] + math.max(till - now_ms, 0)))
  return put(DONE)
end
