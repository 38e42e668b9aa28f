-- Reads the beginnings of keys that may be records. Changes nothing.
-- KEYS    keys that may be records
-- ARGV    1 number of bytes to read
-- Returns for each key its first bytes, or an empty text for a key that has no text
local out, last = {}, ARGV[1] - 1
for i, key in ipairs(KEYS) do
  local text = read('GETRANGE', key, '0', last)
  out[i] = type(text) == 'string' and text or ''
end
return out
