//! The answers of the script.

use super::*;

pub(super) fn read(answer: Answered, plans: &[Option<Planned>]) -> (Vec<Answer>, u64) {
    let as_asked = || plans.iter().map(|_| Answer::Ran(None)).collect();
    let number = |value: &Answered| match value {
        Answered::Int(n) => *n,
        other => panic!("{other:?}"),
    };
    let text = |value: Answered| match value {
        Answered::Nil => None,
        Answered::BulkString(text) => Some(text),
        other => panic!("{other:?}"),
    };
    let mut values = match answer {
        Answered::Int(micros) => return (as_asked(), micros.unsigned_abs()),
        Answered::BulkString(note) => {
            let note = String::from_utf8(note).expect("a note");
            return (as_asked(), note[37..53].parse().expect("a time"));
        }
        Answered::Array(values) => values.into_iter(),
        other => panic!("{other:?}"),
    };
    let micros = number(&values.next().expect("a clock")).unsigned_abs();
    values.next().expect("a note");
    let answers = plans.iter().map(|planned| match number(&values.next().expect("a code")) {
        -9 => Answer::Ran(None),
        1 => Answer::Ran(text(values.next().expect("a value"))),
        code @ (0 | 2) if planned.as_ref().is_some_and(|p| p.write().keys.len() > 1) => {
            let look = planned.as_ref().map(|planned| planned.write().look);
            let main = match values.next().expect("a lock") {
                Answered::Int(-5) => Main::Other,
                Answered::Int(count) => {
                    let all = number(&values.next().expect("a number of readers"));
                    let mut one = || {
                        let who = text(values.next().expect("a reader")).expect("its token");
                        let till = text(values.next().expect("its end")).expect("a time");
                        let till = String::from_utf8(till).expect("digits").parse();
                        (OwnerToken::parse(&who).expect("a token"), till.expect("digits"))
                    };
                    Main::Readers(
                        u32::try_from(all).expect("few"),
                        (0..count).map(|_| one()).collect(),
                    )
                }
                other => text(other).map_or(Main::None, Main::Text),
            };
            let left = number(&values.next().expect("a life"));
            let fence = match values.next().expect("a fence") {
                Answered::Int(-5) => Text::Other,
                other => text(other).map_or(Text::None, Text::Is),
            };
            let mut shown = Shown { left, fence, ..Shown::of(main) };
            let Some(Look::Lock(extent)) = look else { panic!("a lock") };
            if extent.all {
                shown.meta = text(values.next().expect("metadata"));
            }
            if extent.queue {
                shown.queue = text(values.next().expect("a queue")).expect("a text");
            }
            if code == 2 { Answer::Refused(vec![shown]) } else { Answer::Shown(vec![shown]) }
        }
        0 => Answer::Not(text(values.next().expect("a value"))),
        -5 => Answer::Foreign,
        -10 => Answer::Late,
        -16 => Answer::Full,
        code => panic!("{code}"),
    });
    let answers = answers.collect();
    assert!(values.next().is_none(), "more answers than writes");
    (answers, micros)
}

/// But for the time that passes.
pub(super) fn are_equal(answer: &Answer, expected: &Answer) -> bool {
    match (answer, expected) {
        (Answer::Shown(a), Answer::Shown(b)) | (Answer::Refused(a), Answer::Refused(b)) => {
            let (a, b) = (&a[0], &b[0]);
            let is_near = a.left.abs_diff(b.left) < APART_MS && (a.left < 0) == (b.left < 0);
            is_near && Shown { left: 0, ..a.clone() } == Shown { left: 0, ..b.clone() }
        }
        (a, b) => a == b,
    }
}
