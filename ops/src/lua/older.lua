-- Finds a record with a ballot, a time in us, from before the beginning of the server's data
-- history.
-- KEYS    keys that may be records
-- ARGV    1 time when the data history began, in ms
-- Returns the first key with such a record, or an empty text
for _, key in ipairs(KEYS) do
  local promise = read('HGET', key, 'fence')
  if type(promise) == 'string' and (tonumber(promise) or math.huge) < ARGV[1] * 1000 then
    return key
  end
end
return ''
