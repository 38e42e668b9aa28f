//! What the twin shows of its keys.

use super::lock::{self, Main, Shown};
use super::twin::{Setting, Twin, Value, fits, name};
use super::write::{Answer, Extent, Key, LONGEST, Look};
use crate::token::OwnerToken;

impl Twin {
    pub(crate) fn lock(&self, of: Setting, main: &str, extent: Extent) -> Shown {
        let now = of.micros / 1_000;
        let left = match self.keys.get(main) {
            None => -2,
            Some((_, None)) => -1,
            Some((_, Some(end))) => i64::try_from(end.saturating_sub(now)).unwrap_or(i64::MAX),
        };
        let is_all = extent.all || extent.slots;
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
        let meta = self.text(&name(main, Key::Meta)).filter(|_| extent.all).map(<[u8]>::to_vec);
        let kept = self.settled.get(main).copied();
        let kept = kept.filter(|_| extent.kept);
        let queue = self.text(&name(main, Key::Queue)).filter(|_| extent.queue);
        let queue = queue.unwrap_or_default().to_vec();
        Shown { main: value, left, fence, meta, kept, queue }
    }

    pub(super) fn look(&self, of: Setting, key: &str, look: Look, room: &mut usize) -> Answer {
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
