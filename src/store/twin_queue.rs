//! The queue of a lock in the twin.

use super::twin::{Setting, Twin, Value, name};
use super::write::{Ahead, Join, Key, Waits};
use crate::token::OwnerToken;

const PLACE: usize = 48;
const FRESH_MS: u64 = 3_000;

impl Twin {
    pub(super) fn places(&self, key: &str) -> Vec<Waiting> {
        let text = self.text(key).filter(|text| text.len() % PLACE == 1);
        let text = text.and_then(|text| text.get(1..)).unwrap_or_default();
        text.chunks(PLACE).filter_map(Waiting::parse).collect()
    }

    pub(super) fn join(&mut self, of: Setting, main: &str, joins: &Join) {
        let (queue, now) = (name(main, Key::Queue), of.micros / 1_000);
        let text = match self.keys.get(&queue) {
            None => b"0".to_vec(),
            Some((Value::Text(text), _)) if text.len() % PLACE == 1 && text[0] | 1 == b'1' => {
                text.clone()
            }
            Some(_) => return,
        };
        let mut text = text;
        let (mode, place, ticket) = match joins.place {
            Waits::Watcher => {
                text[0] = b'1';
                (b'v', None, None)
            }
            Waits::Writer(place) => (b'x', Some(place), None),
            Waits::Reader(place) => (b's', Some(place), None),
            Waits::Fair(place, ticket) => (b'X', Some(place), Some(ticket)),
        };
        if let Some(place) = place {
            let mut all = self.places(&queue);
            let limit = of.micros + 1_000_000;
            all.retain(|p| p.mode == b'x' || p.till > now);
            let tickets = all.iter().filter(|p| p.mode == b'X' && p.since <= limit);
            let next = tickets.map(|p| p.since + 1).max().unwrap_or(0).max(of.micros);
            all.retain(|p| p.waiter != place.waiter);
            for p in &mut all {
                p.till = p.till.min(now + FRESH_MS);
            }
            let waited = place.micros();
            let since = ticket.map_or(of.micros - waited, |ticket| ticket.unwrap_or(next));
            let needs = u64::try_from(place.needs.as_millis()).unwrap_or(99).min(50);
            let own = Waiting { since, mode, waiter: place.waiter, needs, till: now + FRESH_MS };
            let is_before = |p: &Waiting| {
                let is_tie = p.since == since;
                p.since < since || is_tie && (mode != b'X' || p.waiter < place.waiter)
            };
            let at = all.iter().take_while(|p| is_before(p)).count();
            all.insert(at, own);
            all.truncate(64);
            text.truncate(1);
            for p in &all {
                text.extend(p.text().into_bytes());
            }
        }
        let left = self.keys.get(main).and_then(|(_, end)| *end).map(|end| end - now);
        let life =
            left.map_or(10_000, |left| left + 1_000).max(if mode == b'X' { 3_000 } else { 0 });
        let end = now + life.min(3_600_000);
        let kept = self.keys.get(&queue).and_then(|(_, end)| *end).unwrap_or(0);
        self.keys.insert(queue, (Value::Text(text), Some(end.max(kept))));
    }

    /// No handle has a connection. Who may not publish to one leaves fair waiters as they are.
    pub(super) fn wake(&mut self, of: Setting, main: &str) {
        let (queue, now) = (name(main, Key::Queue), of.micros / 1_000);
        let all = self.places(&queue);
        if all.is_empty() {
            return self.tell(of, main);
        }
        let is_called = |p: &Waiting| p.mode != b'X' || p.till > now;
        let is_mute = of.is_mute && all.iter().any(is_called);
        let stays = |p: &&Waiting| p.mode == b'X' && (is_mute || p.till > now);
        let Some((Value::Text(text), _)) = self.keys.get_mut(&queue) else { return };
        let is_watched = std::mem::replace(&mut text[0], b'0') == b'1';
        text.truncate(1);
        text.extend(all.iter().filter(stays).map(Waiting::text).collect::<String>().into_bytes());
        if text == b"0" {
            self.keys.remove(&queue);
        }
        self.hints.extend((is_watched && !of.is_mute).then(|| main.to_owned()));
    }

    /// Who watches the lock.
    pub(super) fn tell(&mut self, of: Setting, main: &str) {
        let queue = name(main, Key::Queue);
        if let Some((Value::Text(text), _)) = self.keys.get_mut(&queue)
            && text.len() % 48 == 1
            && text[0] == b'1'
        {
            if text.len() == 1 {
                self.keys.remove(&queue);
            } else {
                text[0] = b'0';
            }
            self.hints.extend((!of.is_mute).then(|| main.to_owned()));
        }
    }

    pub(super) fn leave(&mut self, key: &str, own: OwnerToken) {
        let is_other = |p: &Waiting| p.mode != b'X' || OwnerToken::reserved_for(p.waiter) != own;
        let is_ours = self.text(key).is_some_and(|text| text.len() % PLACE == 1);
        let all = self.places(key);
        if is_ours && !all.iter().all(is_other) {
            let Some((Value::Text(text), _)) = self.keys.get_mut(key) else { return };
            text.truncate(1);
            let left = all.iter().filter(|p| is_other(p)).map(Waiting::text);
            text.extend(left.collect::<String>().into_bytes());
            if text == b"0" {
                self.keys.remove(key);
            }
        }
    }
}

/// A place in a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    since: u64,
    mode: u8,
    waiter: u64,
    needs: u64,
    /// In ms.
    till: u64,
}

impl Waiting {
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.is_ascii())?;
        let waiter = u64::from_str_radix(&text[17..33], 16).ok()?;
        let (since, needs, till) = (&text[..16], &text[33..35], &text[35..]);
        let (since, needs, till) = (since.parse().ok()?, needs.parse().ok()?, till.parse().ok()?);
        Some(Self { since, mode: text.as_bytes()[16], waiter, needs, till })
    }

    pub(super) fn text(&self) -> String {
        let Self { since, mode, waiter, needs, till } = *self;
        format!("{since:016}{}{waiter:016x}{needs:02}{till:013}", char::from(mode))
    }

    pub(super) fn is_ahead(&self, of: Setting, ahead: Ahead) -> bool {
        let is_fresh = self.till > of.micros / 1_000;
        is_fresh
            && match ahead {
                Ahead::OfReader(waited) => {
                    self.mode != b's' && self.since < of.micros.saturating_sub(waited.max(1))
                }
                Ahead::OfFair(own, ticket, lead) => {
                    let is_earlier = |ticket| (self.since, self.waiter) < (ticket, own);
                    self.mode == b'X'
                        && self.waiter != own
                        && self.since <= of.micros + lead
                        && ticket.is_none_or(is_earlier)
                }
            }
    }
}
