//! Lists of candidates as conditional writes: who writes compares the whole list. One text, which
//! begins with a byte that says whether who watches is still to be told of it. Then for each entry
//! its owner, its end (13 digits, ms), the length of its text (4 digits), and the text.

use std::sync::Arc;

use super::planned::Judged;
use super::write::{ALONE, AWAITED, Answer, Class, Key, Look, Stamped, Step, Write};
use crate::error::NodeError;
use crate::op::{Enlist, Reply};
use crate::rules::candidates::{Entry, decide};
use crate::rules::header::Header;
use crate::token::OwnerToken;

const MILLIS: u64 = 1_000_000;
const OWNER: usize = 22;
const HEAD: usize = OWNER + 13 + 4;
/// Bytes that an answer without room shows; a list is longer.
const CUT: usize = 2;

/// A list as a server showed it last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Believed {
    /// `None` if there is none.
    pub(crate) text: Option<Vec<u8>>,
    /// Plans by it that others came before.
    tries: u8,
}

/// After so many plans in vain the reply is the list as it is, and the candidate's next write comes
/// later: of many that write at once each would compare in vain as often as there are candidates.
const TRIES: u8 = 3;

#[derive(Clone, Debug)]
pub(crate) struct Planned {
    believed: Believed,
    /// What is written, if anything is; nothing in it deletes the list.
    becomes: Option<Stamped>,
    pub(crate) write: Write,
}

pub(crate) fn plan(h: &Header, op: &Enlist, believed: Believed) -> Planned {
    let entries = believed.text.as_deref().and_then(parse).unwrap_or_default();
    let ruling = decide(h, op, &entries);
    let (mut steps, mut becomes) = (Vec::new(), None);
    let mut class = Class::Read;
    if let Some(list) = &ruling.list {
        let is_own = |entry: &Entry| entry.owner == op.owner;
        class = match op.entry {
            None => Class::Undo,
            Some(_) if entries.iter().any(is_own) => Class::Keep,
            Some(_) => Class::Grant,
        };
        steps.push(believed.text.clone().map_or(Step::Absent, Step::Is));
        becomes = Some(Stamped::default());
        if list.is_empty() {
            steps.push(Step::Drop);
        } else {
            let last = list.iter().map(|entry| entry.till).max().unwrap_or_default();
            let life = last.saturating_sub(h.now).div_ceil(MILLIS).max(1);
            // Who may not tell writes nothing either.
            steps.extend(ruling.tells(op).then(|| Step::Part(0, Stamped::default())));
            let first = if ruling.tells(op) { AWAITED } else { ALONE };
            steps.push(Step::Set(text(first, list, op), Some(life)));
            becomes = Some(text(ALONE, list, op));
        }
        steps.extend(ruling.tells(op).then_some(Step::Wake(0)));
    }
    let look = Look::Record { first: CUT, whole_if: Some((0, ALONE)) };
    let write = Write { class, keys: &[Key::Main], names: 1, steps, look, joins: None };
    Planned { believed, becomes, write }
}

/// Also returns the list as it is now, as far as the answer shows it. `h` has the time of the
/// answer.
pub(crate) fn judge(
    h: &Header,
    op: &Enlist,
    planned: &Planned,
    answer: Answer,
) -> (Judged, Option<Believed>) {
    let is_full = answer == Answer::Full;
    let (there, ran) = match answer {
        Answer::Late => return (Judged::Reply(Err(NodeError::past_deadline())), None),
        Answer::Ran(_) | Answer::Full => (planned.believed.text.clone(), true),
        Answer::Not(there) => (there, false),
        _ => (Some(Vec::new()), false),
    };
    if there.as_ref().is_some_and(|there| there.len() == CUT && there[0] == ALONE) {
        return (Judged::Reply(Ok(Reply::Deferred)), None);
    }
    let Some(entries) = there.as_deref().map_or_else(|| Some(Vec::new()), parse) else {
        return (Judged::Reply(Err(NodeError::foreign(&op.key))), None);
    };
    let tries = planned.believed.tries;
    // Where there is no memory, or no end of others' writes, the entry is left out. Nobody repeats
    // a removal.
    if is_full || !ran && tries + 1 >= TRIES && op.entry.is_some() {
        let ruling = decide(h, &Enlist { entry: None, ..op.clone() }, &entries);
        return (Judged::Reply(Ok(ruling.reply)), Some(Believed { text: there, tries: 0 }));
    }
    let ruling = decide(h, op, &entries);
    if !ran && ruling.list.is_some() {
        return (Judged::Again, Some(Believed { text: there, tries: tries.saturating_add(1) }));
    }
    let now = h.facts.node_micros / 1_000;
    let written = planned.becomes.as_ref().filter(|_| ran);
    let text = written.map_or(there, |text| Some(text.at(now)).filter(|text| !text.is_empty()));
    (Judged::Reply(Ok(ruling.reply)), Some(Believed { text, tries: 0 }))
}

/// The end of the op's own entry is by the server's clock.
fn text(first: u8, list: &[Entry], op: &Enlist) -> Stamped {
    let mut value = Stamped { before: vec![first], ..Stamped::default() };
    for Entry { owner, till, text } in list {
        let to = if value.lease.is_some() { &mut value.after } else { &mut value.before };
        to.extend_from_slice(owner.as_str().as_bytes());
        if *owner == op.owner {
            let ms = op.ttl.as_nanos().div_ceil(u128::from(MILLIS)).max(1);
            value.lease = Some(u64::try_from(ms).unwrap_or(u64::MAX));
        } else {
            to.extend_from_slice(format!("{:013}", till / MILLIS).as_bytes());
        }
        let to = if value.lease.is_some() { &mut value.after } else { &mut value.before };
        to.extend_from_slice(format!("{:04}", text.len()).as_bytes());
        to.extend_from_slice(text);
    }
    value
}

/// `None` if it is not ours. A list has an entry.
fn parse(text: &[u8]) -> Option<Vec<Entry>> {
    let mut rest = text.strip_prefix(&[ALONE]).filter(|rest| !rest.is_empty())?;
    let mut list = Vec::new();
    while !rest.is_empty() {
        let (head, tail) = rest.split_at_checked(HEAD)?;
        let number = |digits: &[u8]| {
            let digits = std::str::from_utf8(digits).ok()?;
            digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u64>().ok())?
        };
        let owner = OwnerToken::parse(&head[..OWNER])?;
        let till = number(&head[OWNER..HEAD - 4])? * MILLIS;
        let len = usize::try_from(number(&head[HEAD - 4..])?).ok()?;
        let (entry, next) = tail.split_at_checked(len)?;
        list.push(Entry { owner, till, text: Arc::from(entry) });
        rest = next;
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::super::twin::{Setting, Twin, Value};
    use super::*;
    use crate::fuzzing::Dice;
    use crate::op::{Listed, MAX_LISTED};
    use crate::rules::tests::{header, owner};

    fn at(now: u64) -> Header {
        let mut h = header("");
        (h.now, h.facts.node_micros) = (now * MILLIS, now * 1_000);
        h
    }

    fn stored(twin: &Twin) -> Vec<Entry> {
        match twin.keys.get("key") {
            Some((Value::Text(text), Some(_))) => parse(text).expect("ours"),
            None => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    fn random_op(dice: &mut Dice) -> Enlist {
        Enlist {
            key: "key".into(),
            owner: owner(dice.of(&["a", "b", "c"])),
            ttl: Duration::from_millis(dice.of(&[3, 40, 500])),
            entry: dice.of(&[None, Some("- 7"), Some("w")]).map(|text| text.as_bytes().into()),
            news: dice.below(2) == 0,
        }
    }

    /// The owner of an entry that has just lapsed may keep its place.
    fn sorted(reply: Reply) -> Vec<Listed> {
        let Reply::Candidates(mut all) = reply else { panic!("{reply:?}") };
        all.sort_by_key(|listed| listed.owner);
        all
    }

    /// Whatever a client believes of a list, and how long ago it looked at the clock.
    #[test]
    fn whatever_is_believed_reply_and_list_are_those_of_the_rule() {
        for seed in 0..4_000 {
            let dice = &mut Dice(seed);
            let (mut twin, mut now) = (Twin::default(), 1_000_000);
            let mut seen = vec![None];
            for _ in 0..12 {
                now += dice.below(20);
                let op = random_op(dice);
                if matches!(twin.keys.get("key"), Some((_, Some(end))) if *end <= now) {
                    twin.keys.remove("key");
                }
                let before = stored(&twin);
                let of = Setting { micros: now * 1_000, ..Setting::default() };
                let mut believed = Believed { text: dice.of(&seen), tries: 0 };
                let ago = dice.below(9);
                let mut h = at(now - ago);
                let told = twin.hints.len();
                let reply = (0..3).find_map(|_| {
                    let planned = plan(&h, &op, std::mem::take(&mut believed));
                    h = at(now);
                    let answer = twin.execute(of, &[("key", planned.write.clone())]).remove(0);
                    match judge(&h, &op, &planned, answer) {
                        (Judged::Reply(reply), there) => {
                            let text = twin.keys.get("key").map(|(value, _)| match value {
                                Value::Text(text) => text.clone(),
                                other => panic!("{other:?}"),
                            });
                            assert_eq!(there.expect("shown").text, text, "seed {seed}: {op:?}");
                            Some(reply.expect("ours"))
                        }
                        (Judged::Again, there) => {
                            believed = there.expect("shown");
                            None
                        }
                        (Judged::Full, _) => unreachable!("there is memory"),
                    }
                });
                let ruling = decide(&h, &op, &before);
                assert_eq!(
                    reply.map(sorted),
                    Some(sorted(ruling.reply.clone())),
                    "seed {seed}: {op:?}"
                );
                // Of an entry that has just lapsed it may be told in vain.
                let told = twin.hints.len() - told;
                assert!(told == usize::from(ruling.tells(&op)) || ago > 0 && told == 1, "{seed}");
                let live = |list: Vec<Entry>| {
                    let live = list.into_iter().filter(|entry| entry.till > h.now);
                    live.map(|entry| (entry.owner, entry)).collect::<BTreeMap<_, _>>()
                };
                let after = ruling.list.unwrap_or(before);
                assert_eq!(live(stored(&twin)), live(after), "seed {seed}: {op:?}");
                if let Some((Value::Text(text), _)) = twin.keys.get("key") {
                    seen.push(Some(text.clone()));
                }
            }
        }
    }

    #[test]
    fn what_has_not_the_form_of_a_list_is_none() {
        let all: Vec<_> = (0..MAX_LISTED as u128)
            .map(|n| Entry {
                owner: OwnerToken::from_random(n),
                till: 1_700_000_000_000 * MILLIS,
                text: [b'-'; 1_024].into(),
            })
            .collect();
        let reader = Enlist {
            key: "key".into(),
            owner: owner("z"),
            ttl: Duration::ZERO,
            entry: None,
            news: false,
        };
        let long = text(ALONE, &all, &reader).before;
        assert_eq!(parse(&long), Some(all));
        for odd in
            [&b""[..], b"w", b"0", b"-", &long[..long.len() - 1], &[&long[..], b"-"].concat()]
        {
            assert_eq!(parse(odd), None);
        }
        let signed = [&long[..=OWNER], b"+", &long[2 + OWNER..]].concat();
        assert_eq!(parse(&signed), None);
    }
}
