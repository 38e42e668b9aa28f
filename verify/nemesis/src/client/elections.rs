//! Two tasks of a client for elections. The first task campaigns, proclaims values and resigns. The
//! second task observes the elections and reads their leaders.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use palisade::Leadership;
use palisade::election::{CampaignError, LeaderError, Observation, ProclaimError};
use rand::RngExt as _;
use tokio::time::{Instant, sleep, timeout};

use super::Task;
use crate::event::{Answer, EventKind, Verb, now};
use crate::wire::LedgerRequest;

const NAMES: [&str; 2] = ["election-0", "election-1"];
const ROUND: Duration = Duration::from_secs(3);

/// Repeatedly campaigns for a leadership, uses the leadership and gives it up.
pub(super) async fn lead(mut task: Task) -> io::Result<()> {
    for n in 0_u64.. {
        task.pause(10..200).await;
        let name: Arc<str> = NAMES[task.dice.random_range(0..2)].into();
        let value: Arc<str> = format!("{}.{}.{n}", task.who.client, task.who.life).into();
        let (since, wait) = (now(), task.millis(500..3_000));
        let election = task.redlock.election(&name).acquire_timeout(wait).build();
        let election = election.expect("the names are constants");
        let call = election.campaign(&*value);
        let answer = |r: &Result<Leadership, CampaignError>| match r {
            Ok(_) => Answer::Done,
            Err(CampaignError::TimedOut { .. }) => Answer::Taken,
            Err(CampaignError::NoQuorum(_)) => Answer::Refused,
            Err(other) => panic!("{other}"),
        };
        let won = Box::pin(task.verb(Verb::Campaign, &name, wait + ROUND, call, answer)).await?;
        let Ok(leadership) = won else { continue };
        let (at, token) = (now(), leadership.term().get());
        let until = leadership.valid_until().as_nanos();
        let held = EventKind::Held { name: Arc::clone(&name), token, since, until };
        task.ledger.report_at(at, held).await?;
        let says =
            EventKind::Says { name: Arc::clone(&name), term: token, value: Arc::clone(&value) };
        task.ledger.report_at(at, says).await?;
        task.govern(leadership, &name, &value).await?;
    }
    Ok(())
}

impl Task {
    async fn govern(
        &mut self,
        leadership: Leadership,
        name: &Arc<str>,
        first: &Arc<str>,
    ) -> io::Result<()> {
        let token = leadership.term().get();
        let length = if self.chance(20) { self.millis(2_000..4_000) } else { self.millis(50..900) };
        let begun = Instant::now();
        while begun.elapsed() < length {
            let step = self.millis(40..200);
            let lost = tokio::select! {
                biased;
                () = leadership.lost() => true,
                () = sleep(step) => false,
            };
            let at = now();
            let valid = leadership.is_valid();
            let until = leadership.valid_until().as_nanos();
            if lost || !valid {
                let over = EventKind::Over { name: Arc::clone(name), token, lost: true };
                return self.ledger.report_at(at, over).await;
            }
            let valid = EventKind::Valid { name: Arc::clone(name), token, until };
            self.ledger.report_at(at, valid).await?;
            self.ledger.accepts(LedgerRequest::Write { name: Arc::clone(name), token }).await?;
            if self.chance(25) {
                let value: Arc<str> = format!("{first}/{}", begun.elapsed().as_millis()).into();
                let says =
                    EventKind::Says { name: Arc::clone(name), term: token, value: value.clone() };
                self.ledger.report(says).await?;
                let answer = |r: &Result<(), ProclaimError>| match r {
                    Ok(()) => Answer::Done,
                    Err(ProclaimError::Lost(_)) => Answer::Lost,
                    Err(ProclaimError::Unknown(_)) => Answer::Refused,
                    Err(other) => panic!("{other}"),
                };
                let call = leadership.proclaim(&*value);
                let _ = self.verb(Verb::Proclaim, name, ROUND, call, answer).await?;
            }
        }
        self.ledger.report(EventKind::Over { name: Arc::clone(name), token, lost: false }).await?;
        if self.chance(20) {
            drop(leadership);
            return Ok(());
        }
        let _ = self
            .verb(Verb::Resign, name, ROUND, leadership.resign(), |outcome| match outcome {
                Ok(()) => Answer::Done,
                Err(palisade::ReleaseError::Unconfirmed(_)) => Answer::Refused,
                Err(_) => Answer::Lost,
            })
            .await?;
        Ok(())
    }
}

/// Observes one election without end. From time to time, reads the leader of the other election.
pub(super) async fn watch(mut task: Task) -> io::Result<()> {
    let mine = usize::from(task.who.client % 2);
    let (name, other): (Arc<str>, Arc<str>) = (NAMES[mine].into(), NAMES[1 - mine].into());
    let election = task.redlock.election(&name).build().expect("a name");
    let mut observer = election.observe();
    let other_election = task.redlock.election(&other).build().expect("a name");
    loop {
        let ask_at = Instant::now() + task.millis(200..600);
        while let Ok(Some(seen)) = timeout(ask_at - Instant::now(), observer.next()).await {
            if let Observation::Leader { leader, .. } = seen {
                let (name, term) = (Arc::clone(&name), leader.term.get());
                let value = leader.value.into();
                task.ledger.report(EventKind::Seen { name, term, value, stream: true }).await?;
            }
        }
        let answer = |r: &Result<_, LeaderError>| match r {
            Ok(_) => Answer::Done,
            Err(LeaderError::NoQuorum(_)) => Answer::Refused,
            Err(other) => panic!("{other}"),
        };
        if let Ok(Some(leader)) =
            task.verb(Verb::Leader, &other, ROUND, other_election.leader(), answer).await?
        {
            let (name, term) = (Arc::clone(&other), leader.term.get());
            let value = leader.value.into();
            task.ledger.report(EventKind::Seen { name, term, value, stream: false }).await?;
        }
    }
}
