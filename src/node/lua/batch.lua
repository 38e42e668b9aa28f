-- Makes the state that the slow paths of a batch share. The state is created only if the marker
-- (record of the data history) or the clock of the server is not as the client expects, or if an op
-- has no fast path. In the first case the parameter `out` is nil. In the second case `out` is the
-- list of the results so far.
-- KEYS[1]  palisade:generation, the marker (quarantine.lua)
-- ARGV[4]  numbers from the client, separated by one space:
--          1 number of good replicas that are needed
--          2 largest age of a good replica's acknowledgement, in seconds
--          3 q: length of the quarantine in ms, from all known settings of the group of servers
--          4 q in ms at the beginning of a data history: each unknown setting of the group counts
--            as the longest possible L (time for which a replaced server may still write)
--          5 E: largest clock error in µs
--          6 time in ms for which a fence is kept
--          7 1 if a server without a marker counts as a new one, without a quarantine, else 0
--          8 deadline of the batch in µs by this server's clock; 0 if there is none
--          9 this server's clock in ms when the client first saw a marker here; 0 if it has seen
--            none
--          10 L in ms at the beginning of a data history; unknown settings count as in 4
-- Returns  a table of this state, or an error reply
local sub = string.sub
local replid, now_ms, bits = sub(info, at, at + 39), math.floor(now_us / 1000), 0
if not out then
  marker, bits = history(marker, replid, now_us, now_ms)
  if not bits then return marker end
end
local clock_error, fence_life, not_after =
  string.match(ARGV[4], '^%d+ %d+ %d+ %d+ (%d+) (%d+) %d (%d+) ')
clock_error, not_after = tonumber(clock_error), tonumber(not_after)
local since, q = tonumber(sub(marker, 42, 54)), tonumber(sub(marker, 73, 81))
local left = since == 0 and 0 or math.max(since + q - now_ms, 0)
return {
  now_us = now_us,
  now_ms = now_ms,
  marker = marker,
  since = since,
  floor = tonumber(sub(marker, 56, 71)), -- no token is below it
  left = left, -- ms until the quarantine ends, 0 outside of one
  -- Name of this data history (the sequence of writes behind this server's data). It is also the
  -- name of the quarantine at the beginning of the history.
  id = sub(replid, 1, 16) .. ':' .. string.format('%.0f', since),
  clock_error = clock_error,
  apart = math.ceil(clock_error / 500), -- largest difference between two servers' clocks, in ms
  fence_life = fence_life,
  settling = sub(marker, 113, 113) == 's' and tonumber(sub(marker, 114, 126)),
  waited = tonumber(sub(marker, 97, 109)),
  late = not_after > 0 and now_us > not_after,
  out = out or {now_us, marker, bits},
}
