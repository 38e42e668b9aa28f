-- Checks the marker of this server (a record of the history of its data), and rewrites it if it is
-- outdated (slow path).
-- KEYS[1]  palisade:generation, the marker. Its fields have a fixed width, and one space between
--          two fields. In this list the position of a field comes before its name, its width after
--          it:
--          1 replid 40       data history (master_replid) in which the marker was written
--          42 since_ms 13    beginning of this data history; 0: this server never lost anything
--          56 floor_us 16    no fencing token is below this number
--          73 q_ms 9         length of the quarantine, which begins at since
--          83 agreed_ms 13   time until which q stays, even if no client asks for it
--          97 waited_ms 13   time until which a client may wait for a hint
--          111 began 1       data at the beginning of the history: n known, e empty, l empty
--                            although a client has seen earlier data
--          113 - or c or s   around a planned handover (`ops/handover`): c closed, s handed over
--          114 until_ms 13   end of the state c or s
--          128 note_ms 13    clock when the marker was last written
--          141 losses        up to eight, each a space, from_ms 13, -, began_ms 13, -, to_ms 13
--          While the marker says c, this server refuses every batch, and so does any server that
--          receives this marker. While it says s, the data are complete, so there is no quarantine.
--          But the previous server measured its leases by its own clock. By this clock these leases
--          may end too early, by at most 2E (E: largest clock error); after until no such lease is
--          left.
--          Every write is at most a second later than the note of its time. A restart, a backup or
--          a promotion restores a prefix of a server's writes. So the restored data contain
--          everything that was written before the restored note. A loss is a range of writes that
--          the data may lack. It begins at the restored note (from; 0: there is none). The next
--          history starts at began. The loss ends at to, which is L later than began, because a
--          replaced server may still have written for the time L.
-- ARGV[4]  ten numbers from the client; batch.lua explains each of them
-- Returns  the present marker, and the bits of the answer that main.lua explains; or only an error
--          reply, if this server is closed
local function history(marker, replid, now_us, now_ms)
  local call, sub, format, match =
    redis.call, string.sub, string.format, string.match
  local q, first_q, clock_error, trust, knows, window =
    match(ARGV[4], '^%d+ %d+ (%d+) (%d+) (%d+) %d+ (%d) %d+ (%d+) (%d+)$')
  q, clock_error, knows, window =
    tonumber(q), tonumber(clock_error), tonumber(knows), tonumber(window)
  local since, floor, seen_q, agreed, waited, began, settling
  local note, losses = 0, ''
  local bits, write = 0, false
  local known = false -- the marker is one that an honest client can have written
  -- E is the largest clock error. The clocks of two servers differ by at most 2E. Two readings of
  -- one clock, before and after a clock step, also differ by at most 2E; one more second is for
  -- rounding. The floor (smallest fencing token of a history) may be later than the end of the
  -- quarantine by at most 2E, measured by the clock that set the floor.
  local apart = clock_error / 500
  local latest = now_ms + apart + 1000
  if type(marker) == 'string' and #marker >= 140 and #marker <= 476
    and (#marker - 140) % 42 == 0
  then
    local a, b, c, d, e, f, kind, g, h = match(marker,
      '^%x+ ()%d+ ()%d+ ()%d+ ()%d+ ()%d+ ()[nel] ([-cs])()%d+ ()%d+')
    if a == 42 and b == 56 and c == 73 and d == 83 and e == 97 and f == 111 and g == 114
      and h == 128
    then
      since, floor = tonumber(sub(marker, 42, 54)), tonumber(sub(marker, 56, 71))
      seen_q, agreed = tonumber(sub(marker, 73, 81)), tonumber(sub(marker, 83, 95))
      waited, began = tonumber(sub(marker, 97, 109)), sub(marker, 111, 111)
      note, losses = tonumber(sub(marker, 128, 140)), sub(marker, 141)
      known = since <= latest and (since == 0 or seen_q > 0) and seen_q <= 172800000
        and agreed <= latest + 2 * seen_q and waited <= latest + 3610000
        and floor <= (math.max(now_ms, since + seen_q) + 2 * apart + 1000) * 1000
        and note <= latest
      for at = 1, #losses, 42 do
        local from, first, to = match(losses, '^ (%d+)-(%d+)-(%d+)', at)
        known = known and to and #from == 13 and #first == 13 and #to == 13
          and tonumber(first) <= latest and tonumber(to) <= latest + 86400000 -- L is at most a day
      end
      local till = tonumber(sub(marker, 114, 126))
      if known and kind ~= '-' then
        known = till <= latest + (kind == 'c' and 600000 or 172800000)
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
    -- All clients share one length of the quarantine, the time after a loss of data in which the
    -- server grants nothing: the longest length that a client asks for. This length is kept for at
    -- least its own duration after the last request for it. A shorter one replaces it as soon as it
    -- covers the rest of that time: later, the first client that asks would decide, and one that
    -- needs a length in between would be forgotten. It is not shortened during a quarantine.
    if q > seen_q then
      write, agreed = true, now_ms + 2 * q
      if seen_q > 0 then bits = 4 end
    elseif now_ms + q > agreed and (q == seen_q or now_ms >= since + seen_q) then
      write, agreed = true, now_ms + 2 * q
    else
      q = seen_q
    end
  else
    write, bits = true, known and 1 or 3
    began = known and began or knows > 0 and 'l' or 'e'
    if marker == '' and trust == '1' and call('EXISTS', KEYS[1]) == 0 then
      since, floor, began, losses = 0, 0, 'n', ''
    else
      if not known then note, losses = 0, '' end
      losses = losses .. format(' %013.0f-%013.0f-%013.0f', note, now_ms, now_ms)
      -- If there are more than eight losses (ranges of lost writes), two neighbours are merged into
      -- one loss. The script chooses the pair for which (length of the merged loss) / (age of this
      -- loss) is smallest. It never merges the latest loss, nor a loss of everything (from 0),
      -- which stays the first.
      if #losses > 336 then
        local least, pair, both
        for at = tonumber(sub(losses, 2, 14)) == 0 and 43 or 1, 253, 42 do
          local a, _, b, c, last, d =
            match(losses, '^ (%d+)-(%d+)-(%d+) (%d+)-(%d+)-(%d+)', at)
          local from, to = math.min(a, c), math.max(b, d)
          local share = math.max(to - from, 0) / math.max(now_ms - last, 1)
          if not least or share < least then
            least, pair, both = share, at, format(' %013.0f-%s-%013.0f', from, last, to)
          end
        end
        losses = sub(losses, 1, pair - 1) .. both .. sub(losses, pair + 84)
      end
      -- `first_q` counts, too. It is the length of the quarantine (time without grants) if each
      -- server with unknown settings has the longest possible failover window. The marker (this
      -- server's record of its data history) may be older than the settings of the server that was
      -- just replaced.
      q = math.max(q, tonumber(first_q), known and seen_q or 0)
      -- The floor (smallest fencing token of the new history) is this clock + 2E + q. The 2E (E:
      -- largest clock error) are needed because this clock may be behind, and the clock from which
      -- an earlier token came may have been ahead. The q is needed because a replaced server may
      -- still grant locks for a part of q.
      since, floor = now_ms, now_us + 2 * clock_error + q * 1000
    end
    agreed, waited = now_ms + 2 * q, known and waited or 0
  end
  -- During a quarantine (a time without grants) the latest loss ends at the beginning of the
  -- history plus the longest L that a client states (L: time for which a replaced server may still
  -- write). The length of the quarantine is also the longest that a client asks for.
  if #losses > 0 and now_ms < since + q and since + window > tonumber(sub(losses, -13)) then
    write, losses = true, sub(losses, 1, -14) .. format('%013.0f', since + window)
  end
  -- The marker (the facts about this server's data) says that the data were empty when this history
  -- began. But this client saw a marker on this server before that time, so earlier data were lost.
  if began == 'e' and knows > 0 then
    if knows < (tonumber(sub(losses, 16, 28)) or 0) then write, began = true, 'l' end
  end
  if write or now_ms > note + 1000 or now_ms < note then
    local new = format('%s %013.0f %016.0f %09.0f %013.0f %013.0f %s %s%013.0f %013.0f%s',
      replid, since, floor, q, agreed, waited, began, settling and 's' or '-', settling or 0,
      now_ms, losses)
    -- If the server refuses this write, the batch fails only if the marker (facts about the data
    -- history) has to change (`write`). If only the note (the clock in the marker) is old, the
    -- batch continues. Ops that need a new note are writes, and the server refuses them as well.
    -- Ops that only read or release may still be executed.
    if write then
      call('SET', KEYS[1], new)
      marker = new
    elseif not redis.pcall('SET', KEYS[1], new).err then
      marker = new
    end
  end
  return marker, bits
end
