-- Codes of results: the first integer of each result, beside AS_ASKED (main.lua). The client reads
-- their numbers from this file (codes.rs).
-- KEYS, ARGV  not used          Returns  nothing
local DONE = 1
local NOT_OWNER = 0 -- or found nothing
local ABSENT = -1
local QUARANTINED = -2
local HELD = -3
local FOREIGN = -4 -- held by a value of another program
local WRONG_TYPE = -5
local MISMATCH = -6 -- the record has another fingerprint
local COMPLETED = -7
local IN_FLIGHT = -8
local LATE = -10 -- not executed, because the batch came too late
local TOO_OLD = -11
local DEFERRED = -12 -- not executed, because the answer is full: ask again
local READING = -13
local NO_PERMISSION = -14
local PERMITS = -15
