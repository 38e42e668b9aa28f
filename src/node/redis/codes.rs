//! Codes of results. Their numbers are read from the script (`codes.lua`), so that both sides have
//! one table.

const TABLE: &[u8] = include_bytes!("../lua/codes.lua");

pub(super) const DONE: i64 = code("DONE");
pub(super) const NOT_OWNER: i64 = code("NOT_OWNER");
pub(super) const ABSENT: i64 = code("ABSENT");
pub(super) const QUARANTINED: i64 = code("QUARANTINED");
pub(super) const HELD: i64 = code("HELD");
pub(super) const FOREIGN: i64 = code("FOREIGN");
pub(super) const WRONG_TYPE: i64 = code("WRONG_TYPE");
pub(super) const MISMATCH: i64 = code("MISMATCH");
pub(super) const COMPLETED: i64 = code("COMPLETED");
pub(super) const IN_FLIGHT: i64 = code("IN_FLIGHT");
pub(super) const LATE: i64 = code("LATE");
pub(super) const TOO_OLD: i64 = code("TOO_OLD");
pub(super) const DEFERRED: i64 = code("DEFERRED");
pub(super) const READING: i64 = code("READING");
pub(super) const NO_PERMISSION: i64 = code("NO_PERMISSION");
pub(super) const PERMITS: i64 = code("PERMITS");
/// Code for all ops of a run (`encode::runs`): each op was executed as requested. The code is not
/// in the table, because `main.lua` writes it and cannot see the names of the table.
pub(super) const AS_ASKED: i64 = -9;

/// Returns the number of this name in the table. The compilation fails if there is none.
const fn code(name: &str) -> i64 {
    let mut line = 0;
    while line < TABLE.len() {
        if let Some(number) = after(line, b"local ")
            && let Some(number) = after(number, name.as_bytes())
            && let Some(mut at) = after(number, b" = ")
        {
            let negative = TABLE[at] == b'-';
            at += negative as usize;
            let mut number = 0;
            while TABLE[at].is_ascii_digit() {
                number = number * 10 + (TABLE[at] - b'0') as i64;
                at += 1;
            }
            return if negative { -number } else { number };
        }
        while TABLE[line] != b'\n' {
            line += 1;
        }
        line += 1;
    }
    panic!("codes.lua has no such name");
}

/// Returns the position after `text` if the table has this text at position `at`; otherwise `None`.
const fn after(at: usize, text: &[u8]) -> Option<usize> {
    let mut i = 0;
    while i < text.len() {
        if at + i >= TABLE.len() || TABLE[at + i] != text[i] {
            return None;
        }
        i += 1;
    }
    Some(at + i)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_code_has_its_own_number() {
        let all = [
            DONE,
            NOT_OWNER,
            ABSENT,
            QUARANTINED,
            HELD,
            FOREIGN,
            WRONG_TYPE,
            MISMATCH,
            COMPLETED,
            IN_FLIGHT,
            LATE,
            TOO_OLD,
            DEFERRED,
            READING,
            NO_PERMISSION,
            PERMITS,
            AS_ASKED,
        ];
        assert_eq!(BTreeSet::from(all).len(), all.len());
        assert_eq!((DONE, NOT_OWNER, PERMITS), (1, 0, -15));
        let lines = std::str::from_utf8(TABLE).unwrap().lines();
        assert_eq!(lines.filter(|l| l.starts_with("local ")).count(), all.len() - 1);
    }
}
