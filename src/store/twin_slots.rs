//! The slots of a semaphore in the twin.

use super::twin::{Setting, Twin, Value, name};
use super::write::{Choose, Key, SlotWrite};
use crate::op::Want;

const SLOT: usize = 51;
const SLOTS_MAX: usize = 256;
const FREE: [u8; SLOT] = *b"......................00000000000000000000000000000";

/// What steps have made of the slots.
#[derive(Debug, Default)]
pub(super) struct Changed {
    all: Option<Vec<[u8; SLOT]>>,
    freed: Vec<usize>,
    /// The request was repeated.
    is_same: bool,
}

pub(super) enum Chose {
    /// Fence and number.
    Given(String),
    Held,
    /// The rule has to judge it.
    Odd,
}

impl Changed {
    fn text(&self) -> Vec<u8> {
        self.all.as_ref().map_or(Vec::new(), |all| all.concat())
    }

    fn find(&self, text: &[u8]) -> Option<usize> {
        let all = self.text();
        (0..all.len()).find(|at| all[*at..].starts_with(text))
    }
}

fn till(ms: u64) -> [u8; 13] {
    format!("{ms:013}").into_bytes().try_into().expect("13 digits")
}

impl Twin {
    fn slots(&self, key: &str, or_none: bool) -> Option<Vec<[u8; SLOT]>> {
        let text = match self.keys.get(key) {
            None if or_none => return Some(Vec::new()),
            Some((Value::Text(text), _)) => text,
            _ => return None,
        };
        let first = text.first_chunk::<SLOT>()?;
        let is_ours = |c: &u8| c.is_ascii_alphanumeric() || b"_.-".contains(c);
        let is_semaphore =
            first[..22].iter().all(is_ours) && first[22..].iter().all(u8::is_ascii_digit);
        let (all, rest) = text.as_chunks::<SLOT>();
        (is_semaphore && rest.is_empty() && all.len() <= SLOTS_MAX).then(|| all.to_vec())
    }

    pub(super) fn choose(
        &self,
        of: Setting,
        key: &str,
        (ask, changed): (&Choose, &mut Changed),
    ) -> Chose {
        let there = changed.all.take().or_else(|| self.slots(key, true));
        let Some(mut all) = there else { return Chose::Held };
        let now = of.micros / 1_000;
        all.resize(all.len().max(ask.slots.of.into()), FREE);
        changed.all = Some(all.clone());
        let (own, moves) =
            (ask.owner.as_str().as_bytes(), matches!(ask.slots.want, Want::Exactly(_)));
        let has = changed.find(own);
        let asked = ask.slots.slot().map(usize::from);
        if ask.is_new && (has.is_some() || asked.is_none_or(|asked| all[asked] != FREE)) {
            return Chose::Odd;
        }
        if let Some(at) = has {
            if at % SLOT != 0 || all[at / SLOT][22..35] <= till(now)[..] {
                return Chose::Odd;
            }
            let has = at / SLOT;
            if !moves || asked == Some(has) {
                changed.is_same = true;
                let fence = String::from_utf8_lossy(&all[has][35..]).into_owned();
                return Chose::Given(format!("{fence} {has}"));
            }
        }
        let order = || ask.slots.order().map(usize::from);
        let is_free = |i: &usize| all[*i][0] == b'.' || all[*i][22..35] <= till(now)[..];
        let reserved = |i: &usize| {
            ask.reserved
                .is_some_and(|own| !is_free(i) && all[*i].starts_with(own.as_str().as_bytes()))
        };
        let may_take = |i: &usize| is_free(i) || moves && all[*i].starts_with(b"------");
        let Some(at) = order().find(reserved).or_else(|| order().find(may_take)) else {
            return if has.is_some() { Chose::Odd } else { Chose::Held };
        };
        let (there, asked) = (all[at][35..].to_vec(), format!("{:016}", ask.proposal));
        let mut fence = asked.clone();
        if there >= asked.into_bytes() {
            match String::from_utf8_lossy(&there).parse::<u64>() {
                Ok(there) if there < ask.proposal + 1_000_000 => {
                    fence = format!("{:016}", there + 1);
                }
                _ => return Chose::Odd,
            }
        }
        if let Some(has) = has {
            all[has / SLOT][..35].copy_from_slice(&FREE[..35]);
        }
        all[at][..22].copy_from_slice(own);
        all[at][22..35].copy_from_slice(&till(of.micros.div_ceil(1_000) + ask.ttl));
        all[at][35..].copy_from_slice(fence.as_bytes());
        changed.all = Some(all);
        Chose::Given(format!("{fence} {at}"))
    }

    pub(super) fn change(
        &self,
        of: Setting,
        key: &str,
        (write, changed): (&SlotWrite, &mut Changed),
    ) -> bool {
        let SlotWrite { slot, begins, owner, ms, fence } = write;
        if changed.all.is_none() {
            changed.all = self.slots(key, false);
        }
        let at = match slot {
            Some(slot) => Some(SLOT * usize::from(*slot)),
            None => changed.find(begins),
        };
        let other = owner.filter(|_| begins.len() == SLOT);
        let other = other.and_then(|own| changed.find(own.as_str().as_bytes()));
        let Some(at) = at.filter(|at| at % SLOT == 0 && other.is_none_or(|other| other == *at))
        else {
            return false;
        };
        let Some(there) = changed.all.as_mut().and_then(|all| all.get_mut(at / SLOT)) else {
            return false;
        };
        let now = of.micros / 1_000;
        let fence = fence.map(|fence| format!("{fence:016}").into_bytes());
        let is_ahead = ms.is_some() || there[22..35] > till(now)[..];
        let is_lower = fence.as_ref().is_none_or(|fence| there[35..] <= fence[..]);
        let holds = begins.len() == SLOT || is_ahead && is_lower;
        if !there.starts_with(begins) || !holds {
            return false;
        }
        match owner {
            None => {
                there[..35].copy_from_slice(&FREE[..35]);
                changed.freed.push(at / SLOT);
            }
            Some(own) => {
                there[..22].copy_from_slice(own.as_str().as_bytes());
                if let Some(ms) = ms {
                    there[22..35].copy_from_slice(&till(of.micros.div_ceil(1_000) + ms));
                }
            }
        }
        if let Some(fence) = fence {
            there[35..].copy_from_slice(&fence);
        }
        true
    }

    pub(super) fn commit(
        &mut self,
        of: Setting,
        key: &str,
        (life, hands_on): (Option<u64>, bool),
        changed: &Changed,
    ) {
        if changed.is_same {
            return;
        }
        if hands_on && !changed.freed.is_empty() {
            self.hand_on(of, key, &changed.freed);
        }
        let kept = self.keys.get(key).and_then(|(_, end)| *end);
        let end = match life {
            Some(life) => Some(kept.unwrap_or(0).max(of.micros / 1_000 + life)),
            None => kept,
        };
        self.keys.insert(key.to_owned(), (Value::Text(changed.text()), end));
    }

    /// No handle has a connection.
    fn hand_on(&mut self, of: Setting, main: &str, freed: &[usize]) {
        let queue = name(main, Key::Queue);
        let is_ours = |text: &&[u8]| text.len() % 48 == 1 && text[0] | 1 == b'1';
        let Some(text) = self.text(&queue).filter(is_ours).map(<[u8]>::to_vec) else { return };
        let lowest = freed.iter().min().copied().unwrap_or_default();
        let knows = |place: &&[u8]| {
            let known = std::str::from_utf8(&place[35..]).ok().and_then(|text| text.parse().ok());
            lowest < known.unwrap_or(0)
        };
        let places = || text[1..].chunks(48);
        let stays = |place: &&[u8]| !knows(place);
        let mut rest: Vec<u8> = places().filter(stays).flatten().copied().collect();
        if of.is_mute && places().any(|place| knows(&place)) {
            rest.clear();
        }
        self.hints.extend((text[0] == b'1' && !of.is_mute).then(|| main.to_owned()));
        if rest.is_empty() {
            self.keys.remove(&queue);
        } else if let Some((value, _)) = self.keys.get_mut(&queue) {
            *value = Value::Text([&b"0"[..], &rest].concat());
        }
    }
}
