-- The ops by their kind, with how many of KEYS and ARGV each takes, and what the common ones
-- need in rare cases. Returns a table of them.
return {
  X = {run = extend, keys = 4, args = 6},
  R = {run = raise, keys = 2, args = 2},
  C = {run = claim, keys = 1, args = 7},
  c = {run = complete, keys = 1, args = 6},
  x = {run = extend_claim, keys = 1, args = 6},
  r = {run = raise_claim, keys = 1, args = 2},
  u = {run = unclaim, keys = 1, args = 2},
  L = {run = lookup, keys = 1, args = 1},
  I = {run = inspect, keys = 4, args = 1},
  above = above,
  refuse = refuse,
  forget = forget,
  kept = kept,
  missed = missed,
  skip = skip,
  wake = wake,
}
