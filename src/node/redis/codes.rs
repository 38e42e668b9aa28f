//! Codes of results: in the script's answer an op's result begins with one of these, or with a
//! fence in place of [`DONE`], or with [`AS_ASKED`]. The script gets the same table, as Lua text.

macro_rules! codes {
    ($use:ident) => {
        $use! {
            DONE = 1, "the op was executed";
            NOT_OWNER = 0, "another owner has the lock or the claim";
            ABSENT = -1, "there is nothing under the key";
            QUARANTINED = -2,
                "refused in a quarantine: the server may have lost data a short time ago";
            HELD = -3, "another owner has the lock, or it is reserved or kept for another owner";
            FOREIGN = -4, "held by a value of another program";
            WRONG_TYPE = -5, "another program wrote a key that the op needs";
            LATE = -10, "not executed, because the batch came after its deadline";
            DEFERRED = -12, "not executed, because the answer is full: ask again";
            FULL = -16, "refused, because the server's memory is full";
        }
    };
}

macro_rules! constants {
    ($($name:ident = $number:literal, $meaning:literal;)*) => {
        $(#[doc = $meaning] pub(super) const $name: i64 = $number;)*
    };
}

macro_rules! lua_text {
    ($($name:ident = $number:literal, $meaning:literal;)*) => {
        concat!($("local ", stringify!($name), " = ", stringify!($number), "\n"),*)
    };
}

codes!(constants);
pub(super) use {codes, lua_text};

/// A conditional write was executed, and the value follows.
pub(super) const RAN: i64 = 1;
/// A condition of a write did not hold, and what is there follows.
pub(super) const NOT_RUN: i64 = 0;
/// Somebody else has the lock, and what is there follows. The caller waits as it asked to.
pub(super) const REFUSED: i64 = 2;

/// Not executed, because an earlier op on one of its keys needs another plan. Once for a whole run.
pub(super) const BEHIND: i64 = -17;

/// For a whole run (`encode::runs`): each op was executed as requested. Not in the table, because
/// `main.lua` writes it and cannot see the table's names.
pub(super) const AS_ASKED: i64 = -9;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    macro_rules! numbers {
        ($($name:ident = $number:literal, $meaning:literal;)*) => {
            [AS_ASKED, BEHIND, $($name),*]
        };
    }

    #[test]
    fn each_code_has_its_own_number() {
        let all = codes!(numbers);
        assert_eq!(BTreeSet::from(all).len(), all.len());
    }
}
