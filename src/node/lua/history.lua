-- What the marker says where it is not as the client expects, or how it has to be.
-- KEYS[1]  palisade:generation, the marker, each field of fixed width, one space between:
--          1 replid 40   42 since_ms 13   56 floor_us 16   73 q_ms 9   83 agreed_ms 13
--          97 waited_ms 13   111 how the history began: n known data, e empty
--          since: when it began (0: this server never lost anything); q: the quarantine's length;
--          agreed: until when that length holds although nobody asks for it; waited: until when
--          somebody may wait for a hint.
--          Around a planned handover (`ops/handover`) it is longer: 113 c or s, 114 until_ms 13.
--          c: closed, for a planned handover: until then nothing at all is answered by
--          it, nor by a server that its data come to. s: handed over: these data are complete, so
--          the history goes on from the one before; only leases given there may end early by this
--          clock, by twice E, until then.
-- ARGV[4]  see batch.lua
-- Returns  the marker as it is now, bits for the answer (see main.lua); or an error reply
local function history(marker, replid, now_us, now_ms)
  local call, find, sub, format, match =
    redis.call, string.find, string.sub, string.format, string.match
  local q, first_q, clock_error, trust = match(ARGV[4], '^%d+ %d+ (%d+) (%d+) (%d+) %d+ (%d)')
  q, clock_error = tonumber(q), tonumber(clock_error)
  local since, floor, seen_q, agreed, waited, began, settling
  local bits, write = 0, false
  local known = false -- the marker is one that an honest client can have written
  if type(marker) == 'string' and (#marker == 111 or #marker == 126) then
    local a, b, c, d, e, f = match(marker, '^%x+ ()%d+ ()%d+ ()%d+ ()%d+ ()%d+ ()[ne]')
    if a == 42 and b == 56 and c == 73 and d == 83 and e == 97 and f == 111 then
      since, floor = tonumber(sub(marker, 42, 54)), tonumber(sub(marker, 56, 71))
      seen_q, agreed = tonumber(sub(marker, 73, 81)), tonumber(sub(marker, 83, 95))
      waited, began = tonumber(sub(marker, 97, 109)), sub(marker, 111, 111)
      -- Clocks are 2E apart at the most, also the same one before and after a step; a second more
      -- for what is rounded. A floor is at most 2E ahead of where the quarantine ended or will.
      local apart = clock_error / 500
      local latest = now_ms + apart + 1000
      known = since <= latest and (since == 0 or seen_q > 0) and seen_q <= 172800000
        and agreed <= latest + 2 * seen_q and waited <= latest + 3610000
        and floor <= (math.max(now_ms, since + seen_q) + 2 * apart + 1000) * 1000
      if #marker == 126 then
        local kind, till = match(marker, '^ ([cs])(%d+)$', 112)
        till = tonumber(till)
        known = known and till and till <= latest + (kind == 'c' and 600000 or 172800000)
        if known and now_ms < till then
          if kind == 'c' then
            return redis.error_reply('HANDOVER closed for another ' .. till - now_ms
              .. ' ms at most.')
          end
          if sub(marker, 1, 40) == replid then settling = till end
        end
        write = not settling
      end
    end
  end
  if known and sub(marker, 1, 40) == replid then
    -- All clients share one length, the longest. It holds for one length after the last client that
    -- asked for it, and is not shortened during a quarantine.
    if q > seen_q then
      write, agreed = true, now_ms + 2 * q
      if seen_q > 0 then bits = 4 end
    elseif q == seen_q then
      if now_ms + q > agreed then write, agreed = true, now_ms + 2 * q end
    elseif now_ms > agreed and now_ms >= since + seen_q then
      write, agreed = true, now_ms + 2 * q
    else
      q = seen_q
    end
  else
    write, bits, began = true, known and 1 or 3, known and 'n' or 'e'
    if marker == '' and trust == '1' and call('EXISTS', KEYS[1]) == 0 then
      since, floor, began = 0, 0, 'n'
    else
      -- What the marker says may be older than the server that was replaced just now.
      q = math.max(q, tonumber(first_q), known and seen_q or 0)
      -- Twice E: this clock may be behind, and the clock of who proposed ahead. And q: a server
      -- that this one replaced goes on granting for a part of it.
      since, floor = now_ms, now_us + 2 * clock_error + q * 1000
    end
    agreed, waited = now_ms + 2 * q, known and waited or 0
  end
  if write then
    marker = format('%s %013.0f %016.0f %09.0f %013.0f %013.0f %s',
      replid, since, floor, q, agreed, waited, began)
      .. (settling and format(' s%013.0f', settling) or '')
    call('SET', KEYS[1], marker)
  end
  return marker, bits
end
