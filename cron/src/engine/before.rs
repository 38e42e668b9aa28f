//! Looks at the ticks of the schedule before the last edit, for as long as another process may have
//! that schedule (cron 11).

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{self, Stream};

use super::Engine;
use super::due::{NextTick, ticks_of};
use super::look_back::{LookedBack, Ticks};
use crate::missed::LOOK_BACK;
use crate::start::Before;

/// Seconds after an edit within which other processes may have the schedule before it.
const BESIDE: i64 = 24 * 3_600;
/// Seconds between two looks.
const PAUSE: i64 = 30;

/// All times are in seconds since 1970.
struct Looks<'a> {
    before: &'a Before,
    next: NextTick,
    /// Time until which the ticks are in `open`, or were.
    seen: i64,
    /// Ticks that no process has begun, as far as is known, and when each is looked at again.
    open: BTreeMap<i64, i64>,
}

impl<'a> Looks<'a> {
    /// Begins with the ticks of before the edit and those of after it, so that many of these do not
    /// hide the run that the edit broke off.
    fn new(before: &'a Before, kept: i64, now: i64) -> Self {
        let Before { schedule, since, edited } = before;
        let first = kept.max(*since);
        let seen = now.min(edited.saturating_add(BESIDE));
        let mut ticks = ticks_of(schedule, (first, seen.min(*edited)));
        ticks.extend(ticks_of(schedule, (first.max(edited.saturating_add(1)), seen)));
        let open = ticks.into_iter().map(|tick| (tick, now)).collect();
        Self { before, next: NextTick::default(), seen, open }
    }

    fn end(&self) -> i64 {
        self.before.edited.saturating_add(BESIDE)
    }

    /// Returns the ticks to look at now, the last one first.
    fn due(&mut self, now: i64) -> Vec<i64> {
        // The clock was set back.
        if now < self.seen {
            self.seen = now;
            self.open.retain(|tick, _| *tick <= now);
            self.open.values_mut().for_each(|at| *at = now.min(*at));
        }
        let (schedule, to) = (&self.before.schedule, now.min(self.end()));
        if self.next.after(schedule, self.seen).is_some_and(|next| next <= to) {
            let new = ticks_of(schedule, (self.seen.saturating_add(1), to));
            self.open.extend(new.into_iter().map(|tick| (tick, now)));
            self.seen = to;
        }
        self.open.iter().rev().filter(|(_, at)| **at <= now).map(|(tick, _)| *tick).collect()
    }

    /// Takes what a look at `ticks` found. A process may begin a tick long after it was due, so a
    /// tick without a record is looked at again each time when its age has doubled.
    fn looked(&mut self, ticks: &[i64], found: &LookedBack, now: i64) {
        for tick in ticks {
            self.open.remove(tick);
        }
        for tick in &found.absent {
            let again = now.saturating_add(now.saturating_sub(*tick).max(PAUSE));
            // One more look at the end, however long the last pause would be.
            let last = self.end().saturating_add(PAUSE);
            if now < last {
                self.open.insert(*tick, again.min(last));
            }
        }
        self.open.extend(found.unread.iter().map(|tick| (*tick, now.saturating_add(1))));
        while self.open.len() > LOOK_BACK {
            self.open.pop_first();
        }
    }

    /// Returns the seconds until the next look; `None` if there is none.
    fn pause(&self, now: i64) -> Option<i64> {
        let next = self.open.values().min().copied();
        if next.is_none() && now >= self.end() {
            return None;
        }
        Some(next.map_or(PAUSE, |next| next.saturating_sub(now).clamp(1, PAUSE)))
    }
}

impl<F> Engine<'_, F> {
    pub(super) fn of_before(&self) -> impl Stream<Item = LookedBack> {
        let looks = self.before.as_ref().map(|b| Looks::new(b, self.kept(), self.cron.now()));
        stream::unfold(looks, move |looks: Option<Looks<'_>>| async move {
            let mut looks = looks?;
            loop {
                let now = self.cron.now();
                let ticks = looks.due(now);
                if !ticks.is_empty() {
                    let found = self.look_back(Ticks::OfBefore, ticks.clone(), false).await;
                    looks.looked(&ticks, &found, now);
                    return Some((found, Some(looks)));
                }
                let pause = looks.pause(now)?;
                tokio::time::sleep(Duration::from_secs(pause.unsigned_abs())).await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Schedule;

    const EDITED: i64 = 1_800_000_000;

    fn before(text: &str) -> Before {
        let schedule = Schedule::parse(text, "UTC").unwrap();
        Before { schedule, since: EDITED - 90_000, edited: EDITED }
    }

    fn found(absent: Vec<i64>, unread: Vec<i64>) -> LookedBack {
        let (begun, lapsed, runs, unclear) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        LookedBack { of: Ticks::OfBefore, begun, lapsed, runs, absent, unclear, unread }
    }

    #[test]
    fn a_run_that_the_edit_broke_off_is_found_hours_later() {
        let before = before("* * * * * *");
        let now = EDITED + 3 * 3_600;
        let ticks = Looks::new(&before, 0, now).due(now);
        assert_eq!(ticks.len(), 2 * LOOK_BACK);
        for tick in [EDITED, EDITED - 1, now] {
            assert!(ticks.contains(&tick), "{}", tick - EDITED);
        }
    }

    #[test]
    fn a_tick_that_nobody_began_is_looked_at_until_a_day_after_the_edit() {
        let before = before("0 * * * *");
        let first = before.schedule.after(EDITED).unwrap();
        let mut looks = Looks::new(&before, EDITED, EDITED);
        let mut at = Vec::new();
        let mut now = EDITED;
        while let Some(pause) = looks.pause(now) {
            now += pause;
            let ticks = looks.due(now);
            assert!(ticks.iter().all(|tick| *tick <= now));
            if ticks.contains(&first) {
                at.push(now - first);
            }
            looks.looked(&ticks, &found(ticks.clone(), Vec::new()), now);
        }
        assert!((0..=3 * PAUSE).contains(&(now - EDITED - BESIDE)), "{}", now - EDITED);
        assert!((0..=PAUSE).contains(&at[0]), "{at:?}");
        assert!(at.windows(2).all(|w| w[1] <= 2 * w[0] + 2 * PAUSE), "{at:?}");
        assert!(at.len() < 15 && first + at.last().unwrap() >= EDITED + BESIDE, "{at:?}");
    }

    #[test]
    fn ticks_are_found_when_they_are_due_after_a_clock_that_was_ahead() {
        let before = before("0 * * * *");
        let ahead = EDITED + 10 * 3_600;
        let mut looks = Looks::new(&before, EDITED + 1, ahead);
        let ticks = looks.due(ahead);
        looks.looked(&ticks, &found(ticks.clone(), Vec::new()), ahead);
        let now = EDITED + 10;
        let ticks = looks.due(now);
        assert!(ticks.iter().all(|tick| *tick <= now), "{ticks:?}");
        looks.looked(&ticks, &found(Vec::new(), Vec::new()), now);
        let first = before.schedule.after(now).unwrap();
        assert_eq!(looks.due(first + 1), [first]);
    }

    #[test]
    fn a_tick_is_over_with_its_record_and_is_read_again_where_too_few_nodes_answer() {
        let before = before("0 * * * *");
        let now = EDITED + 7_200;
        let mut looks = Looks::new(&before, EDITED + 1, now);
        let ticks = looks.due(now);
        assert_eq!(ticks.len(), 2);
        looks.looked(&ticks, &found(Vec::new(), vec![ticks[0]]), now);
        assert_eq!(looks.due(now + 1), ticks[..1]);
        looks.looked(&ticks[..1], &found(Vec::new(), Vec::new()), now + 1);
        assert!(looks.due(now + 300).is_empty());
    }
}
