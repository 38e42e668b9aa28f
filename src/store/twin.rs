//! The twin of `src/node/lua/write.lua` in memory: executes the same conditional writes with the
//! same answers. Tests compare the two.

use std::collections::{BTreeMap, HashSet};

use super::lock::{self, Main, Shown};
use super::write::{
    ALONE, AWAITED, Answer, Class, Extent, Key, LONGEST, Look, Stamped, Step, Take, Write,
};
use crate::name::LockKeys;
use crate::rules::locks::READERS_MAX;
use crate::token::OwnerToken;

/// Bytes of values in one answer.
const ROOM: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(Vec<u8>),
    /// Each with its end (ms).
    Readers(Vec<(OwnerToken, u64)>),
    /// Of another type.
    Other,
}

/// What is true of a whole batch.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is true or not of any batch")]
pub(crate) struct Setting {
    pub(crate) micros: u64,
    pub(crate) is_late: bool,
    pub(crate) is_full: bool,
    /// The user may not publish.
    pub(crate) is_mute: bool,
    /// The clock is not in the window of the batch.
    pub(crate) is_outside: bool,
}

/// Keys with their values and the ends of their lives (ms).
#[derive(Clone, Debug, Default)]
pub(crate) struct Twin {
    pub(crate) keys: BTreeMap<String, (Value, Option<u64>)>,
    pub(crate) hints: Vec<String>,
    /// Until when locks are kept (ms).
    pub(crate) settled: BTreeMap<String, u64>,
}

impl Twin {
    pub(crate) fn execute(&mut self, of: Setting, batch: &[(&str, Write)]) -> Vec<Answer> {
        let (mut room, mut moot, mut answers) = (ROOM, HashSet::new(), Vec::new());
        for (key, write) in batch {
            let answer = self.one(of, key, write, moot.contains(*key), &mut room);
            let is_not = matches!(answer, Answer::Not(_) | Answer::Shown(_));
            if is_not && write.class != Class::Read {
                moot.insert(*key);
            }
            answers.push(answer);
        }
        answers
    }

    pub(super) fn text(&self, key: &str) -> Option<&[u8]> {
        match self.keys.get(key) {
            Some((Value::Text(text), _)) => Some(text),
            _ => None,
        }
    }

    fn is_foreign(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(|(value, _)| !matches!(value, Value::Text(_)))
    }

    fn holds(&self, of: Setting, key: &str, step: &Step) -> Option<bool> {
        let text = self.text(key).unwrap_or_default();
        let (is_there, is_text) = (self.keys.contains_key(key), !self.is_foreign(key));
        Some(match step {
            Step::Absent => !is_there,
            Step::Is(value) => is_text && text == value,
            Step::IsOrAbsent(value) => !is_there || is_text && text == value,
            Step::Begins(begin) => is_text && text.starts_with(begin),
            Step::AtMost(most) => {
                let is_number =
                    (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
                let number = || String::from_utf8_lossy(text).parse::<u64>().ok();
                !is_there || is_number && number().is_some_and(|number| number <= *most)
            }
            Step::Member(own) | Step::NoMember(own) => match self.keys.get(key) {
                Some((Value::Readers(all), _)) => {
                    let is_member =
                        all.iter().any(|(who, till)| who == own && till * 1_000 > of.micros);
                    is_member == matches!(step, Step::Member(_))
                }
                _ => matches!(step, Step::NoMember(_)),
            },
            Step::Present => is_there,
            Step::Settled(till) => self.settled.get(key) == till.as_ref(),
            Step::EndsWithin(ms) => {
                let end = self.keys.get(key).and_then(|(_, end)| *end);
                end.is_some_and(|end| end.saturating_sub(of.micros / 1_000) <= *ms)
            }
            Step::Clock(from, until) => (*from..=*until).contains(&of.micros),
            Step::Window => !of.is_full && !of.is_late,
            Step::First(ahead) => !self.places(key).iter().any(|p| p.is_ahead(of, *ahead)),
            Step::Shareable(_) | Step::Readable | Step::IsRead(_) => match self.keys.get(key) {
                None => !matches!(step, Step::IsRead(_)),
                Some((Value::Text(text), _)) => {
                    let is_reserved = text == OwnerToken::READERS.as_str().as_bytes();
                    is_reserved && !matches!(step, Step::IsRead(_))
                }
                Some((Value::Readers(all), Some(_))) => {
                    let live = |(_, till): &&(OwnerToken, u64)| *till > of.micros / 1_000;
                    let count = all.iter().filter(live).count();
                    match step {
                        Step::IsRead(more) => count > 0 && count + more <= READERS_MAX,
                        Step::Shareable(more) => count + more <= READERS_MAX,
                        _ => true,
                    }
                }
                Some(_) => false,
            },
            _ => return None,
        })
    }

    fn one(
        &mut self,
        of: Setting,
        main: &str,
        write: &Write,
        is_moot: bool,
        room: &mut usize,
    ) -> Answer {
        if of.is_late && write.class != Class::Undo {
            return Answer::Late;
        }
        let (mut shown, full_room) = (None, *room);
        let mut runs = !write.steps.is_empty() && !is_moot;
        let (mut key, mut is_refused, mut is_over) = (main.to_owned(), false, false);
        let (mut seen, mut taker, joins) = (None, None, write.joins.as_ref());
        let is_outside = of.is_outside && write.steps.contains(&Step::Window);
        for step in &write.steps {
            if let Step::On(other, number) = step {
                assert_eq!(*number, 0, "of one name");
                key = name(main, *other);
                continue;
            }
            if !runs {
                break;
            }
            if let Step::Take(take) = step {
                taker = Some(take.owner);
            }
            if let Step::AtMost(_) = step {
                seen = self.text(&key).map(<[u8]>::to_vec);
            }
            match self.holds(of, &key, step) {
                Some(holds) => {
                    runs = holds;
                    let asks = match step {
                        Step::First(_) => true,
                        Step::Shareable(_) => {
                            self.holds(of, &key, &Step::Shareable(1)) == Some(false)
                        }
                        _ => false,
                    };
                    is_refused |= asks && !holds;
                    if let Step::Shareable(_) | Step::Readable | Step::IsRead(_) = step
                        && !is_outside
                    {
                        self.bury(of, &key);
                    }
                }
                None if *step == Step::Show => {
                    let text = self.text(&key).unwrap_or_default();
                    runs = fits(text.len(), *room);
                    if runs {
                        *room = room.saturating_sub(text.len());
                        shown = Some(text.to_vec());
                    }
                }
                None if is_outside => {
                    runs = false;
                    is_refused = matches!(step, Step::Take(take) if self.keeps_out(main, take));
                }
                None if of.is_full && write.class == Class::Grant => {
                    *room = full_room;
                    return Answer::Full;
                }
                None => {
                    self.write(of, (main, &key), step);
                    match step {
                        Step::Free(owner) => {
                            runs = self.free(of, main, *owner);
                            is_over = !runs;
                        }
                        Step::Refuse => (runs, is_over) = (false, true),
                        Step::Keep { first, low, .. } => {
                            let digits = seen.take().map(String::from_utf8);
                            let there = digits.and_then(|text| text.ok()?.parse().ok());
                            let new = there.map_or(*first, |there: u64| there.max(*low));
                            shown = (new != *first).then(|| new.to_string().into_bytes());
                        }
                        Step::Take(take) => match self.take(of, main, *take) {
                            Took::Given(fence) => {
                                let told = (fence != take.proposal).then(|| fence.to_string());
                                shown = told.map(String::into_bytes);
                            }
                            Took::Held => (runs, is_refused) = (false, true),
                            Took::Odd => runs = false,
                        },
                        _ => {}
                    }
                }
            }
        }
        let is_reader = matches!(write.look, Look::Lock(Extent { reader: Some(own), .. })
            if self.is_read_by(of, main, own));
        let is_holder = |own: OwnerToken| self.text(main) == Some(own.as_str().as_bytes());
        let is_own = is_reader || taker.is_some_and(is_holder);
        is_refused &= !is_own && (is_outside || !of.is_outside) && !of.is_full && !of.is_late;
        let found = (!runs).then(|| self.look(of, main, write.look, room));
        let answer = match found.unwrap_or(Answer::Ran(shown)) {
            Answer::Shown(shown) if is_refused || is_over => Answer::Refused(shown),
            answer => answer,
        };
        if let Some(joins) = joins.filter(|joins| joins.always || is_refused) {
            self.join(of, main, joins);
        }
        answer
    }

    fn is_read_by(&self, of: Setting, main: &str, own: OwnerToken) -> bool {
        let is_live = |(who, till): &(OwnerToken, u64)| *who == own && till * 1_000 > of.micros;
        let there = self.keys.get(main);
        matches!(there, Some((Value::Readers(all), Some(_))) if all.iter().any(is_live))
    }

    fn bury(&mut self, of: Setting, key: &str) {
        if let Some((Value::Readers(all), Some(_))) = self.keys.get_mut(key) {
            all.retain(|(_, till)| *till > of.micros / 1_000);
            if all.is_empty() {
                self.keys.remove(key);
            }
        }
    }

    fn keeps_out(&self, main: &str, take: &Take) -> bool {
        let is_reserved = |own: OwnerToken| self.text(main) == Some(own.as_str().as_bytes());
        self.keys.contains_key(main) && !take.reserved.is_some_and(is_reserved)
    }

    fn take(&mut self, of: Setting, main: &str, take: Take) -> Took {
        if self.keeps_out(main, &take) {
            return Took::Held;
        }
        let fence = name(main, Key::Fence);
        let number = |text: &[u8]| {
            let is_number = (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
            std::str::from_utf8(text).ok().filter(|_| is_number)?.parse::<u64>().ok()
        };
        let old = self.keys.get(&fence).map(|(value, _)| match value {
            Value::Text(text) => number(text),
            _ => None,
        });
        let p = take.proposal.to_string();
        // A text as long as a token, and before it, is taken for one.
        let is_before = |text: &[u8]| text.len() == p.len() && text < p.as_bytes();
        let new = match old {
            None => take.proposal,
            Some(_) if self.text(&fence).is_some_and(is_before) => take.proposal,
            Some(Some(old)) if old < take.proposal + 1_000_000 => take.proposal.max(old + 1),
            Some(old) => {
                self.keys.remove(main);
                if let Some((Value::Text(_), end)) = self.keys.get_mut(&fence) {
                    *end = old.map(|_| of.micros / 1_000 + take.life);
                }
                return Took::Odd;
            }
        };
        let now = of.micros / 1_000;
        let own = Value::Text(take.owner.as_str().into());
        self.keys.insert(main.to_owned(), (own, Some(now + take.ttl)));
        let value = Value::Text(new.to_string().into_bytes());
        self.keys.insert(fence, (value, Some(now + take.life)));
        Took::Given(new)
    }

    fn write(&mut self, of: Setting, (main, key): (&str, &str), step: &Step) {
        let now = of.micros / 1_000;
        let bytes = |Stamped { before, lease, after }: &Stamped| match lease {
            Some(lease) => [&before[..], format!("{:013}", now + lease).as_bytes(), after].concat(),
            None => before.clone(),
        };
        match step {
            Step::Set(value, life) => {
                let kept = self.keys.get(key).and_then(|(_, end)| *end);
                let end = life.map_or(kept, |life| Some(now + life));
                self.keys.insert(key.to_owned(), (Value::Text(bytes(value)), end));
            }
            Step::Part(at, value) => self.part(key, *at, &bytes(value)),
            Step::KeepFor(ms) => {
                if let Some((_, end)) = self.keys.get_mut(key) {
                    *end = Some(end.unwrap_or(0).max(now + ms));
                }
            }
            Step::LiveFor(ms) => {
                if let Some((_, end)) = self.keys.get_mut(key) {
                    *end = Some(now + ms);
                }
            }
            Step::KeepMeta(ms) => {
                if let Some((Value::Text(_), Some(end))) = self.keys.get_mut(key) {
                    *end = now + ms;
                }
            }
            Step::DropMeta => {
                if matches!(self.keys.get(key), Some((Value::Text(_), Some(_)))) {
                    self.keys.remove(key);
                }
            }
            Step::Free(_) | Step::Take(_) | Step::WakeReaders | Step::Refuse => {}
            Step::Leave(own) => self.leave(key, *own),
            Step::Drop => _ = self.keys.remove(key),
            Step::Read { owners, ms, prolongs } => {
                let now = of.micros.div_ceil(1_000);
                let mut all = match self.keys.remove(key) {
                    Some((Value::Readers(all), _)) => all,
                    _ => Vec::new(),
                };
                for own in owners {
                    match all.iter_mut().find(|(who, _)| who == own) {
                        Some((_, till)) if *prolongs => *till = now + ms,
                        Some(_) => {}
                        None => all.push((*own, now + ms)),
                    }
                }
                let end = all.iter().map(|(_, till)| *till).max();
                self.keys.insert(key.to_owned(), (Value::Readers(all), end));
            }
            Step::Keep { first, low, ms } => {
                let there = self.text(key).map(|text| String::from_utf8_lossy(text).parse());
                let new = there.map_or(*first, |there| there.unwrap_or(0_u64).max(*low));
                self.write(of, (main, key), &Step::Number(new, *ms));
            }
            Step::Settle(till, _) => _ = self.settled.insert(main.to_owned(), *till),
            Step::Number(number, ms) => {
                let end = self.keys.get(key).and_then(|(_, end)| *end).unwrap_or(0).max(now + ms);
                let text = number.to_string().into_bytes();
                self.keys.insert(key.to_owned(), (Value::Text(text), Some(end)));
            }
            Step::Publish(meta, ms) => {
                let is_same = self.text(key) == Some(meta);
                let value = (Value::Text(meta.clone()), Some(now + ms));
                self.keys.insert(key.to_owned(), value);
                if !is_same {
                    self.tell(of, main);
                }
            }
            Step::Wake(at) => {
                if self.text(key).and_then(|text| text.get(*at)) == Some(&AWAITED) {
                    self.part(key, *at, &[ALONE]);
                    self.hints.extend((!of.is_mute).then(|| key.to_owned()));
                }
            }
            _ => unreachable!("a condition"),
        }
    }

    fn free(&mut self, of: Setting, main: &str, owner: OwnerToken) -> bool {
        let is_owned = self.text(main) == Some(owner.as_str().as_bytes());
        if is_owned {
            self.keys.remove(main);
        }
        if !self.keys.contains_key(main) {
            self.wake(of, main);
        }
        is_owned
    }

    fn part(&mut self, key: &str, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let fresh = || (Value::Text(Vec::new()), None);
        let (Value::Text(text), _) = self.keys.entry(key.to_owned()).or_insert_with(fresh) else {
            panic!("a part of what is no text");
        };
        let end = at + bytes.len();
        text.resize(text.len().max(end), 0);
        text[at..end].copy_from_slice(bytes);
    }

    pub(crate) fn lock(&self, of: Setting, main: &str, extent: Extent) -> Shown {
        let now = of.micros / 1_000;
        let left = match self.keys.get(main) {
            None => -2,
            Some((_, None)) => -1,
            Some((_, Some(end))) => i64::try_from(end.saturating_sub(now)).unwrap_or(i64::MAX),
        };
        let is_all = extent.all;
        let cut = |text: &[u8], most: usize| text[..text.len().min(most)].to_vec();
        let value = match self.keys.get(main) {
            None => Main::None,
            Some((Value::Text(text), _)) => {
                let is_long = is_all && text.get(22).is_some_and(u8::is_ascii_digit);
                Main::Text(cut(text, if is_long { 13_057 } else { 23 }))
            }
            Some((Value::Readers(all), Some(_))) => {
                let mut some = all.clone();
                some.sort_by_key(|(who, till)| (*till, who.as_str().to_owned()));
                let is_own = |(who, _): &&(OwnerToken, u64)| extent.reader == Some(*who);
                if let Some(own) = all.iter().find(is_own) {
                    some = vec![*own];
                } else if !is_all {
                    some = some.pop().into_iter().collect();
                }
                Main::Readers(u32::try_from(all.len()).unwrap_or(u32::MAX), some)
            }
            Some(_) => Main::Other,
        };
        let fence = match self.keys.get(&name(main, Key::Fence)) {
            _ if !extent.fence => lock::Text::None,
            None => lock::Text::None,
            Some((Value::Text(text), _)) => lock::Text::Is(cut(text, 19)),
            Some(_) => lock::Text::Other,
        };
        let meta = self.text(&name(main, Key::Meta)).filter(|_| is_all).map(<[u8]>::to_vec);
        let kept = self.settled.get(main).copied();
        let kept = kept.filter(|_| extent.kept);
        let queue = self.text(&name(main, Key::Queue)).filter(|_| extent.queue);
        let queue = queue.unwrap_or_default().to_vec();
        Shown { main: value, left, fence, meta, kept, queue }
    }

    fn look(&self, of: Setting, key: &str, look: Look, room: &mut usize) -> Answer {
        let (first, whole_if) = match look {
            Look::Lock(extent) => return Answer::Shown(vec![self.lock(of, key, extent)]),
            Look::Record { first, whole_if } => (first, whole_if),
        };
        let text = match self.keys.get(key) {
            None => return Answer::Not(None),
            Some((Value::Text(text), _)) => text,
            Some(_) => return Answer::Foreign,
        };
        let begin = &text[..first.min(text.len())];
        let (at, byte) = match whole_if {
            Some(condition) if begin.len() == first => condition,
            _ => return Answer::Not(Some(begin.to_vec())),
        };
        if begin.get(at) != Some(&byte) {
            return Answer::Not(Some(begin.to_vec()));
        }
        if text.len() > LONGEST {
            return Answer::Foreign;
        }
        if !fits(text.len(), *room) {
            *room = 0;
            return Answer::Not(Some(begin.to_vec()));
        }
        *room = room.saturating_sub(text.len());
        Answer::Not(Some(text.clone()))
    }
}

enum Took {
    Given(u64),
    Held,
    /// The rule has to judge the fence.
    Odd,
}

pub(super) fn name(main: &str, key: Key) -> String {
    let keys = LockKeys::new(main);
    match key {
        Key::Main => main,
        Key::Fence => keys.fence(),
        Key::Meta => keys.meta(),
        Key::Queue => keys.queue(),
    }
    .to_owned()
}

/// The first value is shown even if it is longer.
fn fits(len: usize, room: usize) -> bool {
    room > 0 && len <= room || room == ROOM
}
