//! Faults of the failover table, one for each row. Each fault is injected into a new group and then
//! ended.

use std::time::Duration;

use super::facts::Facts;
use super::group::{Group, Stop};
use super::verdict::{Case, Row};
use crate::detour::Detour;
use crate::event::{Event, Nanos, now};
use crate::names::names;
use crate::world::{Failure, Place, signal};

/// Time after a planned handover in which leases may still run by the old master's clock. After it,
/// another handover is certainly possible.
const SETTLES: Duration = Duration::from_secs(60);
/// Time after a fault that changes nothing, in which it would show that it does.
const QUIET: Duration = Duration::from_secs(12);

names! {
    /// A fault of a Sentinel group. Each fault is a row of the failover table, in this order.
    pub(super) enum Fault {
        Isolated = "isolated master",
        Split = "split with one replica",
        Manual = "manual failover",
        Handover = "handover",
        HandoverBack = "handover there and back",
        HandoverGivenUp = "handover given up half way",
        Priority = "unequal replica-priority",
        Freeze = "freeze and resume",
        Back = "there and back",
        Empty = "restart without data",
        Returning = "returning master",
        ReturningAlone = "returning master, alone",
        TiltedDeath = "master dies in tilt",
        BackedUp = "backup of the master",
        Reset = "SENTINEL RESET",
        Elsewhere = "address of another group",
    }
}

/// Time for which an address leads to another group's server: shorter than a lease.
const DETOUR: Duration = Duration::from_secs(5);

/// Times of an injected fault, and the number of writes to the old master, if they were counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Struck {
    pub(super) at: Nanos,
    pub(super) healed: Option<Nanos>,
    pub(super) writes_to_old_master: Option<usize>,
}

impl Fault {
    /// Returns true if the fault cuts the network so that clients are on both sides of the cut.
    pub(super) fn cuts_clients(self) -> bool {
        matches!(self, Self::Isolated | Self::Split)
    }

    /// Returns true if the new master continues without a quarantine.
    pub(super) fn is_seamless(self) -> bool {
        matches!(self, Self::Handover | Self::HandoverBack)
    }

    pub(super) fn is_quiet(self) -> bool {
        matches!(self, Self::BackedUp | Self::Reset | Self::Elsewhere)
    }

    pub(super) fn groups(self) -> u8 {
        if self == Self::Elsewhere { 2 } else { 1 }
    }

    pub(super) async fn prepare(self, group: &Group) -> Result<(), Failure> {
        let set = |n: usize, to: &'static str| async move {
            group.ask_ok(n, &["CONFIG", "SET", "replica-priority", to]).await
        };
        match self {
            // Sentinel prefers a replica with a smaller priority.
            Self::Priority => set(1, "10").await?,
            Self::Back | Self::HandoverBack => set(0, "10").await?,
            Self::Returning => set(2, "0").await?,
            _ => return Ok(()),
        }
        Ok(())
    }

    /// Injects the fault, waits until clients are served again, and ends the fault.
    pub(super) async fn strike(
        self,
        group: &mut Group,
        stop: &mut Stop,
    ) -> Result<Struck, Failure> {
        let at = now();
        let mut struck = Struck { at, ..Struck::default() };
        match self {
            Self::Isolated => {
                let (near, far) = sides(group, &[1, 4], &[2, 3, 5, 6]);
                group.cut(&near, &far).await?;
                group.until_served(self, at, stop).await?;
                stop.wait(Duration::from_secs(2)).await?;
                struck.healed = Some(group.mend().await?);
            }
            Self::Split => {
                let (near, far) = sides(group, &[1, 2], &[3, 4, 5, 6]);
                group.cut(&near, &far).await?;
                group.until_named(at, stop).await?;
                stop.wait(Duration::from_secs(6)).await?;
                struck.healed = Some(group.mend().await?);
                group.until_served(self, at, stop).await?;
            }
            Self::Manual => {
                group.world.break_(&["failover", group.name()]).await?;
                group.until_served(self, at, stop).await?;
            }
            Self::Handover => {
                group.hand_over()?.end().await?;
                group.until_served(self, at, stop).await?;
            }
            Self::HandoverBack => {
                group.hand_over()?.end().await?;
                group.until_ready_for_failover(3, stop).await?;
                back(group, stop).await?;
                group.until_served(self, at, stop).await?;
            }
            Self::HandoverGivenUp => {
                let mut handover = group.hand_over()?;
                handover.until("is promoted").await?;
                drop(handover);
                group.until_served(self, at, stop).await?;
            }
            Self::Priority => {
                group.cut(&[Place::Box(1, 1)], &[Place::Box(1, 2)]).await?;
                stop.wait(Duration::from_secs(6)).await?;
                struck.at = now();
                group.world.break_(&["kill", group.name(), "--server", "a1"]).await?;
                group.until_served(self, struck.at, stop).await?;
                struck.healed = Some(group.mend().await?);
                group.world.break_(&["restart", group.name(), "--server", "a1"]).await?;
            }
            Self::Freeze => return freeze(group, stop).await,
            Self::Returning | Self::ReturningAlone => returning(self, group, stop).await?,
            Self::TiltedDeath => {
                group.tilt(stop).await?;
                struck.at = now();
                group.world.break_(&["kill", group.name(), "--server", "a1"]).await?;
                group.until_served(self, struck.at, stop).await?;
                group.world.break_(&["restart", group.name(), "--server", "a1"]).await?;
            }
            Self::BackedUp => {
                group.world.ask(group.server(0), &["--rdb", "-"]).await;
                stop.wait(QUIET).await?;
            }
            Self::Reset => {
                for sentinel in &group.world.groups[0].sentinels {
                    group.world.ask(sentinel, &["SENTINEL", "RESET", group.name()]).await;
                }
                stop.wait(QUIET).await?;
            }
            Self::Elsewhere => elsewhere(group, stop).await?,
            Self::Back => {
                group.world.break_(&["failover", group.name()]).await?;
                group.until_named(at, stop).await?;
                group.until_master_is(0, stop).await?;
                group.until_served(self, at, stop).await?;
            }
            Self::Empty => {
                group.world.break_(&["restart-empty", group.name(), "--server", "a1"]).await?;
                group.until_served(self, at, stop).await?;
            }
        }
        Ok(struck)
    }
}

fn sides(group: &Group, near: &[u8], far: &[u8]) -> (Vec<Place>, Vec<Place>) {
    let boxes = |list: &[u8]| list.iter().map(|b| Place::Box(1, *b)).collect::<Vec<_>>();
    let clients = |list: Vec<u8>| list.into_iter().map(Place::Client);
    let (mut near, mut far) = (boxes(near), boxes(far));
    near.extend(clients(group.near()));
    far.extend(clients(group.far()));
    (near, far)
}

/// Performs another planned handover of the group. As long as leases still run by the clock of the
/// last master, the handover is refused and changes nothing. So this function repeats it.
async fn back(group: &Group, stop: &mut Stop) -> Result<(), Failure> {
    let begun = now();
    loop {
        match group.hand_over()?.end().await {
            Err(_) if now() - begun < SETTLES.as_nanos() as u64 => {
                stop.wait(Duration::from_millis(500)).await?;
            }
            done => return done,
        }
    }
}

/// For all clients, the master's address leads to another group's master for some seconds.
async fn elsewhere(group: &Group, stop: &mut Stop) -> Result<(), Failure> {
    let to = group.world.groups[1].servers[0].addr.clone();
    let kept = || group.world.ask(&to, &["MGET", "palisade:generation", "palisade:note"]);
    let size = || group.world.ask(&to, &["DBSIZE"]);
    let before = (kept().await, size().await);
    let detour = Detour {
        table: "nemesis_detour".to_owned(),
        clients: (1..=group.shape.clients).collect(),
        from: group.server(0).to_owned(),
        to: to.clone(),
    };
    detour.begin(&group.world).await?;
    stop.wait(DETOUR).await?;
    detour.end(&group.world).await?;
    stop.wait(QUIET).await?;
    let after = (kept().await, size().await);
    if after != before {
        return Err(format!("the other group had {before:?}, and has {after:?}").into());
    }
    Ok(())
}

/// Freezes the master for ten seconds. Then counts the writes that it executes late: they were sent
/// to it after the Sentinels reported the new master.
async fn freeze(group: &mut Group, stop: &mut Stop) -> Result<Struck, Failure> {
    let mut old = group.watch_old()?;
    let pid = group.world.pid(0, "a1").ok_or("the master does not run")?;
    let at = now();
    signal(pid, "STOP");
    group.until_named(at, stop).await?;
    old.named(&group.world)?;
    let rest = Duration::from_secs(10).saturating_sub(Duration::from_nanos(now() - at));
    stop.wait(rest).await?;
    old.before_resume(&group.world)?;
    signal(pid, "CONT");
    let resumed = now();
    group.until_served(Fault::Freeze, at, stop).await?;
    // Within this time, a Sentinel makes the old master a replica.
    stop.wait(Duration::from_secs(13).saturating_sub(Duration::from_nanos(now() - resumed)))
        .await?;
    let writes_to_old_master = Some(old.sent_after()?);
    Ok(Struck { at, healed: None, writes_to_old_master })
}

/// Freezes the master until another one is promoted and through its quarantine. Then the first one
/// thaws and the promoted one dies, and the Sentinels promote the first one, which never learnt
/// that it was replaced. The third server may not be promoted, or dies with the promoted one.
async fn returning(fault: Fault, group: &mut Group, stop: &mut Stop) -> Result<(), Failure> {
    let pid = group.world.pid(0, "a1").ok_or("the master does not run")?;
    let at = now();
    signal(pid, "STOP");
    let replaced = async {
        group.until_named(at, stop).await?;
        group.until_served(fault, at, stop).await
    };
    let replaced = replaced.await;
    signal(pid, "CONT");
    replaced?;
    stop.wait(Duration::from_millis(1_500)).await?;
    let promoted = group.world.master(0).await.ok_or("no master is named")?;
    let third = if promoted.id == "a2" { "a3" } else { "a2" };
    let dies = if fault == Fault::ReturningAlone {
        vec![&*promoted.id, third]
    } else {
        vec![&*promoted.id]
    };
    for id in &dies {
        signal(group.world.pid(0, id).ok_or("a server does not run")?, "KILL");
    }
    group.until_named(now(), stop).await?;
    if fault == Fault::ReturningAlone {
        group.world.break_(&["restart", group.name(), "--server", third]).await?;
    }
    // A quarantine, and the time that a Sentinel takes to lead the third server to the first one.
    let quarantine = Duration::from_millis(group.shape.max_ttl_ms);
    stop.wait(quarantine + Duration::from_secs(20)).await?;
    group.world.break_(&["restart", group.name(), "--server", &promoted.id]).await
}

impl Fault {
    /// Adds a doubt if the fault had no effect. Such a row proves nothing, even if no server
    /// granted or renewed a lease wrongly.
    pub(super) fn took_place(self, case: &Case, events: &[Event], row: &mut Row) {
        let facts = Facts::of(events);
        let before = facts.named_at(case.struck).cloned();
        let master = facts.master().map(|(_, m)| m.clone());
        let promoted = facts.promoted_after(case.struck);
        let (changed, promotions) = match self {
            Self::Empty | Self::BackedUp | Self::Reset | Self::Elsewhere => (false, 0),
            // The second promotion changes nothing, and the first master is named again.
            Self::Returning | Self::ReturningAlone | Self::Back | Self::HandoverBack => (false, 2),
            _ => (true, 1),
        };
        if (before != master) != changed || promoted < promotions {
            row.doubts.push(format!(
                "{before:?} was master before, {master:?} after, with {promoted} promotions"
            ));
        }
        // In a split, the locks of clients on the side of the old master expire before the new
        // master accepts writes.
        // In tilt, they expire before a Sentinel promotes anyone, and a master that is alone is
        // named long before it has a replica.
        let expire = matches!(self, Self::Split | Self::TiltedDeath | Self::ReturningAlone)
            || self.is_quiet();
        if !expire && !case.all_replicas && row.sitting < 8 {
            let doubt = format!("only {} locks were held when the new master began", row.sitting);
            row.doubts.push(doubt);
        }
        let gap = row.seconds_without_grants;
        if self == Self::Elsewhere && gap < DETOUR.as_secs_f64() - 1.0 {
            row.doubts.push(format!("only {gap} s without grants: the address led home"));
        }
        if self.is_seamless() && row.ran_out > 0 {
            row.doubts.push(format!("{} locks were lost", row.ran_out));
        }
        let silent = before.map_or(0, |old| facts.silence(&old));
        if self == Self::Freeze && silent < 9_000_000_000 {
            row.doubts.push(format!("the frozen master was silent for {silent} ns only"));
        }
        if self == Self::Freeze && row.writes_to_old_master.is_none() {
            row.doubts.push("the writes at the old master were not counted".to_owned());
        }
    }
}
