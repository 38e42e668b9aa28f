//! Asks all Sentinels at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Sleep, sleep, timeout};

use super::conn::{SentinelConn, Subscription};
use super::discovery::{Answer, Discovery, Master, SentinelReply, Trouble, minority};
use super::events::{EventCollector, Events};
use crate::dial::address::Address;
use crate::dial::endpoint::Endpoint;
use crate::error::NodeError;
use crate::tls;

#[derive(Clone, Debug)]
pub(crate) struct Inquiry {
    pub(crate) name: Arc<str>,
    /// The data servers' credentials are never used.
    pub(crate) like: Endpoint,
    pub(crate) within: Duration,
    /// Addresses that are not in it are used as reported.
    pub(crate) map: BTreeMap<Address, Address>,
}

pub(crate) struct Asker {
    inquiry: Inquiry,
    machine: Discovery,
    open: BTreeMap<Address, SentinelConn>,
    silent: BTreeSet<Address>,
    events: Arc<Events>,
    logged_poll_only: AtomicBool,
}

pub(crate) struct Round {
    pub(crate) decision: Result<Master, NodeError>,
    pub(crate) known: usize,
    pub(crate) reachable: usize,
    pub(crate) in_tilt: usize,
    /// More than a minority report it, so at least one must be right: the next round comes sooner.
    pub(crate) troubled: bool,
}

pub(crate) struct Replicas {
    pub(crate) reported: BTreeSet<Address>,
    /// By a majority, and where each is reached: the client logs in there, so one Sentinel alone
    /// must not choose them.
    pub(crate) agreed: BTreeMap<Address, Address>,
    pub(crate) none_fits: bool,
}

impl Asker {
    pub(crate) fn new(inquiry: Inquiry, sentinels: Vec<Address>, events: Arc<Events>) -> Self {
        Self {
            inquiry,
            machine: Discovery::new(sentinels),
            open: BTreeMap::new(),
            silent: BTreeSet::new(),
            events,
            logged_poll_only: AtomicBool::new(false),
        }
    }

    /// All known Sentinels, then those that these report. At most twice the deadline of one, and
    /// `enough` if the answers until then give a decision. `hurry`: a caller waits.
    pub(crate) async fn round(&mut self, hurry: bool, enough: Duration) -> Round {
        let mut end = pin!(sleep(enough));
        let first: Vec<Address> = self.machine.sentinels().to_vec();
        let mut answers = self.ask(&first, Vec::new(), hurry, end.as_mut()).await;
        if let Some(a) = answers.iter().find(|a| !matches!(a.reply, SentinelReply::Failed(..))) {
            let from = a.from.clone();
            self.machine.first_replier(&from);
        }
        if self.machine.learn(&answers) {
            let known = self.machine.sentinels().iter();
            let new: Vec<Address> = known.filter(|s| !first.contains(s)).cloned().collect();
            answers = self.ask(&new, answers, hurry, end.as_mut()).await;
            self.machine.learn(&answers);
        }
        let sentinels = self.machine.sentinels();
        self.open.retain(|at, _| sentinels.contains(at));
        self.events.keep(sentinels);
        let failed = answers.iter().filter(|a| matches!(a.reply, SentinelReply::Failed(..)));
        self.silent = failed.map(|a| a.from.clone()).collect();
        let known = self.machine.count();
        Round {
            decision: self.machine.decide(&answers),
            known,
            reachable: answers
                .iter()
                .filter(|a| !matches!(a.reply, SentinelReply::Failed(..)))
                .count(),
            in_tilt: answers.iter().filter(|a| a.in_tilt).count(),
            troubled: answers.iter().filter(|a| a.troubled()).count() > minority(known),
        }
    }

    pub(crate) async fn replicas(&mut self, enough: Duration) -> Replicas {
        let Self { inquiry, open, machine, .. } = self;
        let within = inquiry.within.min(enough);
        let asking: FuturesUnordered<_> = open
            .iter_mut()
            .map(|(at, conn)| async {
                let got = timeout(within, conn.replicas(&inquiry.name)).await;
                (at.clone(), got.ok().and_then(Result::ok))
            })
            .collect();
        let answers: Vec<_> = asking.collect().await;
        let mut lists = Vec::new();
        for (at, named) in answers {
            match named {
                Some(named) => lists.push(named),
                // A late answer could be mistaken for the answer to the next request.
                None => drop(open.remove(&at)),
            }
        }
        let known = machine.count();
        let none_fits = 2 * lists.len() > known
            && lists.iter().any(|list| !list.at.is_empty())
            && lists.iter().all(|list| !list.can_promote);
        let lists: Vec<Vec<Address>> = lists.into_iter().map(|list| list.at).collect();
        let reported = lists.iter().flatten().cloned().collect();
        let agreed = named_by_most(lists, known);
        let reached = |at: Address| (at.clone(), inquiry.map.get(&at).cloned().unwrap_or(at));
        Replicas { reported, agreed: agreed.into_iter().map(reached).collect(), none_fits }
    }

    /// Without `hurry`, each Sentinel has its whole deadline. With `hurry`, a frozen minority must
    /// not delay every caller:
    /// - Once the answers give a decision, the others have only another fifth of the deadline; one
    ///   might report a higher epoch.
    /// - If a minority was silent in the last round and all others have answered, the round ends at
    ///   once with a decision. Without one, the silent get a fifth of the deadline.
    async fn ask(
        &mut self,
        whom: &[Address],
        mut answers: Vec<Answer>,
        hurry: bool,
        mut end: Pin<&mut Sleep>,
    ) -> Vec<Answer> {
        let Self { inquiry, machine, open, silent, events, logged_poll_only } = self;
        let (inquiry, logged) = (&*inquiry, &*logged_poll_only);
        let few_silent = silent.len() < whom.len().div_ceil(2);
        let lively: Vec<_> = whom.iter().filter(|at| !silent.contains(at)).collect();
        let mut asking: FuturesUnordered<_> = whom
            .iter()
            .map(|at| ask_one(inquiry, at, open.remove(at), events.of(at), logged))
            .collect();
        let mut patience = pin!(sleep(2 * inquiry.within));
        let (mut pressed, mut is_late) = (!hurry, false);
        loop {
            tokio::select! {
                biased;
                next = asking.next() => {
                    let Some((answer, conn)) = next else { return answers };
                    if let Some(conn) = conn {
                        open.insert(answer.from.clone(), conn);
                    }
                    answers.push(answer);
                    let answered = |at: &&Address| answers.iter().any(|a| a.from == **at);
                    let all_lively = few_silent && lively.iter().all(answered);
                    let decided =
                        (hurry || is_late) && machine.clone().decide(&answers).is_ok();
                    if decided && (all_lively || is_late) {
                        break;
                    }
                    if !pressed && (decided || all_lively) {
                        pressed = true;
                        patience.set(sleep(inquiry.within / 5));
                    }
                }
                () = &mut end, if !is_late => {
                    is_late = true;
                    if machine.clone().decide(&answers).is_ok() {
                        break;
                    }
                }
                () = &mut patience => break,
            }
        }
        drop(asking);
        for at in whom {
            if !answers.iter().any(|a| a.from == *at) {
                answers.push(late(at, inquiry));
            }
        }
        answers
    }
}

async fn ask_one(
    inquiry: &Inquiry,
    at: &Address,
    conn: Option<SentinelConn>,
    collector: Arc<EventCollector>,
    logged: &AtomicBool,
) -> (Answer, Option<SentinelConn>) {
    let Inquiry { name, like, within, map } = inquiry;
    let exchange = timeout(*within, async {
        if let Some(mut conn) = conn {
            let answer = conn.ask(at, name).await;
            // A broken connection proves nothing about the Sentinel.
            if !matches!(answer.reply, SentinelReply::Failed(Trouble::Unreachable, _)) {
                return (answer, Some(conn));
            }
        }
        match SentinelConn::open(at, name, like, collector, *within).await {
            Ok((mut conn, subscription)) => {
                if let Subscription::PollOnly(why) = subscription
                    && !logged.swap(true, Ordering::Relaxed)
                {
                    tracing::info!(group = %name, sentinel = %at, %why,
                        "cannot subscribe to Sentinel events; polling only");
                }
                (conn.ask(at, name).await, Some(conn))
            }
            Err((trouble, detail)) => (failed(at, trouble, detail), None),
        }
    });
    match exchange.await {
        Ok((mut answer, conn)) => {
            let keep = !matches!(answer.reply, SentinelReply::Failed(..));
            if let SentinelReply::Master { at, peers, .. } = &mut answer.reply {
                for at in peers.iter_mut().map(|p| &mut p.at).chain([at]) {
                    if let Some(reached) = map.get(at) {
                        *at = reached.clone();
                    }
                }
            }
            if let SentinelReply::Failed(trouble @ Trouble::Auth, _) = &mut answer.reply
                && like.logins().is_some()
            {
                *trouble = Trouble::NoCredentials;
            }
            (answer, conn.filter(|_| keep))
        }
        Err(_) => (late(at, inquiry), None),
    }
}

fn named_by_most(lists: Vec<Vec<Address>>, sentinels: usize) -> BTreeSet<Address> {
    let mut votes = BTreeMap::<Address, usize>::new();
    for list in lists {
        for at in list.into_iter().collect::<BTreeSet<_>>() {
            *votes.entry(at).or_default() += 1;
        }
    }
    votes.into_iter().filter(|(_, n)| 2 * n > sentinels).map(|(at, _)| at).collect()
}

fn late(at: &Address, inquiry: &Inquiry) -> Answer {
    let detail = "within its deadline";
    let detail = if inquiry.like.is_tls() {
        format!("{detail}; {}", tls::SILENT).into()
    } else {
        detail.into()
    };
    failed(at, Trouble::Timeout, detail)
}

fn failed(at: &Address, trouble: Trouble, detail: Box<str>) -> Answer {
    let reply = SentinelReply::Failed(trouble, detail);
    Answer { from: at.clone(), id: None, reply, in_tilt: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sentinel_alone_names_no_replica() {
        let at = |port| Address::new("10.0.0.1", port).expect("an address");
        let list = |ports: &[u16]| ports.iter().map(|p| at(*p)).collect::<Vec<_>>();
        let three = vec![list(&[1, 2]), list(&[2, 9, 9, 9]), list(&[2, 1])];
        assert_eq!(named_by_most(three, 3), BTreeSet::from([at(1), at(2)]));
        // Of all Sentinels, including those without an answer.
        assert!(named_by_most(vec![list(&[1])], 3).is_empty());
        assert_eq!(named_by_most(vec![list(&[1])], 1), BTreeSet::from([at(1)]));
    }
}
