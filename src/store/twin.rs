//! The twin of `src/node/lua/write.lua` in memory: executes the same conditional writes with the
//! same answers. Tests compare the two.

use std::collections::{BTreeMap, HashSet};

use super::write::{ALONE, AWAITED, Answer, Class, LONGEST, Look, Stamped, Step, Write};

/// Bytes of values in one answer.
const ROOM: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(Vec<u8>),
    /// Of another type.
    Other,
}

/// What is true of a whole batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setting {
    pub(crate) micros: u64,
    pub(crate) is_late: bool,
    pub(crate) is_full: bool,
    /// The user may not publish.
    pub(crate) is_mute: bool,
}

/// Keys with their values and the ends of their lives (ms).
#[derive(Clone, Debug, Default)]
pub(crate) struct Twin {
    pub(crate) keys: BTreeMap<String, (Value, Option<u64>)>,
    pub(crate) hints: Vec<String>,
}

impl Twin {
    pub(crate) fn execute(&mut self, of: Setting, batch: &[(&str, Write)]) -> Vec<Answer> {
        let (mut room, mut moot, mut answers) = (ROOM, HashSet::new(), Vec::new());
        for (key, write) in batch {
            let answer = self.one(of, key, write, moot.contains(*key), &mut room);
            if matches!(answer, Answer::Not(_)) && write.class != Class::Read {
                moot.insert(*key);
            }
            answers.push(answer);
        }
        answers
    }

    fn text(&self, key: &str) -> Option<&[u8]> {
        match self.keys.get(key) {
            Some((Value::Text(text), _)) => Some(text),
            _ => None,
        }
    }

    fn one(
        &mut self,
        of: Setting,
        key: &str,
        write: &Write,
        is_moot: bool,
        room: &mut usize,
    ) -> Answer {
        if of.is_late && write.class != Class::Undo {
            return Answer::Late;
        }
        let (mut shown, full_room) = (None, *room);
        let mut runs = !write.steps.is_empty() && !is_moot;
        for step in &write.steps {
            if !runs {
                break;
            }
            match step {
                Step::Absent => runs = !self.keys.contains_key(key),
                Step::Begins(begin) => {
                    runs = self.text(key).unwrap_or_default().starts_with(begin)
                        && !matches!(self.keys.get(key), Some((Value::Other, _)));
                }
                Step::Clock(from, until) => runs = (*from..=*until).contains(&of.micros),
                Step::Show => {
                    let text = self.text(key).unwrap_or_default();
                    runs = fits(text.len(), *room);
                    if runs {
                        *room = room.saturating_sub(text.len());
                        shown = Some(text.to_vec());
                    }
                }
                _ if of.is_full && write.class == Class::Grant => {
                    *room = full_room;
                    return Answer::Full;
                }
                step => self.write(of, key, step),
            }
        }
        if runs { Answer::Ran(shown) } else { self.look(key, write.look, room) }
    }

    fn write(&mut self, of: Setting, key: &str, step: &Step) {
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
            Step::Wake(at) => {
                if self.text(key).and_then(|text| text.get(*at)) == Some(&AWAITED) {
                    self.part(key, *at, &[ALONE]);
                    self.hints.extend((!of.is_mute).then(|| key.to_owned()));
                }
            }
            _ => unreachable!("a condition"),
        }
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

    fn look(&self, key: &str, Look { first, whole_if }: Look, room: &mut usize) -> Answer {
        let text = match self.keys.get(key) {
            None => return Answer::Not(None),
            Some((Value::Other, _)) => return Answer::Foreign,
            Some((Value::Text(text), _)) => text,
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

/// The first value is shown even if it is longer.
fn fits(len: usize, room: usize) -> bool {
    room > 0 && len <= room || room == ROOM
}
