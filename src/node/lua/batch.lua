-- The state that the slow paths of a batch share, made when an op first needs it. The client has
-- computed all of it from the marker that it expects and the script has found.
-- KEYS[1]  the marker
-- ARGV[4]  numbers from the client, separated by one space:
--          1 number of good replicas that are needed
--          2 largest age of a good replica's acknowledgement, in seconds
--          3 E: largest clock error in µs
--          4 time in ms for which a fence is kept
--          5 deadline of the batch in µs by this server's clock; 0 if there is none
--          6 floor of the data history in µs
--          7 end of its quarantine in ms; 0 if it has none
--          8 end of the time in which leases from before a planned handover may last longer than
--            this clock shows, in ms; 0 if it is over
--          9 name of the data history and of the quarantine with which it began
--          10 number of the last write that counts which the client knows of, in 12 digits; 0 if
--          of none
--          11 1 if the note has to be of the clock's present second, 2 if the batch counts as a
--          write
-- Returns  a table of this state

-- The slow paths read with these after their first write, too. A user who lacks one of the rights
-- is refused here, before an op of a slow path has changed anything.
redis.call('EXISTS', KEYS[1])
redis.call('PTTL', KEYS[1])
redis.call('GETRANGE', KEYS[1], '0', '0')
local clock_error, fence_life, not_after, floor, till, settling, id = string.match(ARGV[4],
  '^%d+ %d+ (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+)')
clock_error, not_after, settling = tonumber(clock_error), tonumber(not_after), tonumber(settling)
local now_ms = math.floor(now_us / 1000)
return {
  now_us = now_us,
  now_ms = now_ms,
  floor = tonumber(floor), -- no token is below it
  left = math.max(till - now_ms, 0), -- ms until the quarantine ends, 0 outside of one
  id = id,
  clock_error = clock_error,
  apart = math.ceil(clock_error / 500), -- largest difference between two servers' clocks, in ms
  fence_life = fence_life,
  settling = settling > now_ms and settling,
  note = note,
  waited = #note == 67 and tonumber(string.sub(note, 55, 67)) or 0,
  late = not_after > 0 and now_us > not_after,
  out = out,
}
