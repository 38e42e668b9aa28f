-- The state of a batch that not every op has met as requested, made when an op first needs it. The
-- script makes its functions anew on every call, and each upvalue of one adds a tenth of a small
-- command's time; so they have none.
-- KEYS[1]  the marker
-- ARGV[4]  numbers from the client, separated by one space:
--          1 number of good replicas that are needed
--          2 largest age of a good replica's acknowledgement, in seconds
--          3 E: largest clock error in µs
--          4 deadline of the batch in µs by this server's clock; 0 if there is none
--          5 end of the quarantine in ms; 0 if there is none
--          6 number of the last write that counts which the client knows of, in 12 digits; 0 if
--          of none
--          7 1 if the note has to be of the clock's present second, 2 if the batch counts as a
--          write
-- Returns  a table of this state
local function batch(now_us, note, out, full)
  -- Ops read with these after their first write, too. A user who lacks one of the rights is
  -- refused here, before anything was changed.
  redis.call('EXISTS', KEYS[1])
  redis.call('PTTL', KEYS[1])
  redis.call('GETRANGE', KEYS[1], '0', '0')
  local clock_error, not_after, till = string.match(ARGV[4], '^%d+ %d+ (%d+) (%d+) (%d+)')
  local now_ms = math.floor(now_us / 1000)
  return {
    now_us = now_us,
    now_ms = now_ms,
    left = math.max(till - now_ms, 0), -- ms until the quarantine ends, 0 outside of one
    clock_error = tonumber(clock_error),
    note = note,
    waited = #note == 67 and tonumber(string.sub(note, 55, 67)) or 0,
    late = not_after ~= '0' and now_us > tonumber(not_after),
    full = full,
    out = out,
  }
end
