-- Stores the list of a handler's finished steps. Refuses if the record has a higher ballot, another
-- fingerprint, or a result. Of two lists with one ballot the longer is kept, because a repeated
-- request may arrive after a later one.
-- KEYS  1 record
-- ARGV  1 owner of the claim  2 ballot of the claim  3 list of the steps  4 time for which the
--       record is kept, in ms  5 fingerprint of the request, or ''
-- Puts  DONE, also if a longer list was kept
--       | NOT_OWNER: the record has a higher ballot or a result
--       | MISMATCH: the record has another fingerprint
--       | WRONG_TYPE: the key belongs to another program (records.lua puts it)
if kind == 's' then
  if is_anothers(ARGV[a + 5]) then return put(MISMATCH) end
  if rf or is_overtaken(tonumber(ARGV[a + 2]), ARGV[a + 1]) then return put(NOT_OWNER) end
  if steps == ARGV[a + 2] and call('HSTRLEN', key, 'val') >= #ARGV[a + 3] then return put(DONE) end
  call('HSET', key, 'own', ARGV[a + 1], 'fence', ARGV[a + 2], 'till', digits(till), 'att',
    math.max(attempt, 1), 'g', b.id, 'rf', 's' .. ARGV[a + 2], 'val', ARGV[a + 3])
  know(ARGV[a + 5])
  -- The running lease may be another owner's, whose claim may have kept the record for less time.
  -- The record has to outlast it by the retention, because complete_fast.lua does not extend its
  -- expiry.
  keep(digits(ARGV[a + 4] + math.max(till - now_ms, 0)))
  return put(DONE)
end
