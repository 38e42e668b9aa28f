-- Codes of results. In the answer the result of an op begins with one of these numbers, or with a
-- fence in place of 1, or with -9 for an op or a run that was executed as requested (main.lua). The
-- client reads the numbers from this file (codes.rs).
-- KEYS, ARGV  not used          Returns  nothing
local DONE = 1 -- the op was executed
local NOT_OWNER = 0 -- another owner has the lock or the claim
local ABSENT = -1 -- there is nothing under the key
local QUARANTINED = -2 -- refused in a quarantine: the server may have lost data a short time ago
local HELD = -3 -- another owner has the lock, or it is reserved or kept for another owner
local FOREIGN = -4 -- held by a value of another program
local WRONG_TYPE = -5 -- another program wrote a key that the op needs
local MISMATCH = -6 -- the record has the fingerprint of another request
local COMPLETED = -7 -- the idempotency key has a result
local IN_FLIGHT = -8 -- another claim of the idempotency key runs
local LATE = -10 -- not executed, because the batch came after its deadline
local TOO_OLD = -11 -- the request is older than the time for which records are kept
local DEFERRED = -12 -- not executed, because the answer is full: ask again
local READING = -13 -- readers have the lock; they follow
local NO_PERMISSION = -14 -- the user lacks a command that readers need
local PERMITS = -15 -- the key is a semaphore; its permits follow
