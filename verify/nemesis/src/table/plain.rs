//! The second half of the failover table: plain writes without the library, a row for each setting
//! of their durability. A row has the time in which two servers accepted writes, and the number
//! of acknowledged writes that were lost.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Serialize;

use super::facts::Facts;
use super::fault::Fault;
use super::group::{Group, Shape, Stop};
use super::writer::Fates;
use crate::event::{EventKind, WriteReply, now};
use crate::ledger::Ledger;
use crate::world::{Failure, Place};

/// Safety setting for plain writes: a setting of the servers, or a number of replicas for `WAIT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    None,
    /// Servers with `min-replicas-to-write 1` and `min-replicas-max-lag 2`.
    MinReplicas,
    /// `WAIT` for this number of replicas. The servers have no min-replicas setting.
    Wait(u8),
}

pub(super) const SETTINGS: [Setting; 4] =
    [Setting::None, Setting::MinReplicas, Setting::Wait(1), Setting::Wait(2)];
pub(super) const FAULTS: [Fault; 4] =
    [Fault::Isolated, Fault::Split, Fault::Manual, Fault::Priority];

impl Setting {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::MinReplicas => "min 1 lag 2",
            Self::Wait(1) => "WAIT 1",
            Self::Wait(_) => "WAIT all",
        }
    }

    /// Returns the name of this setting's row in the table for the fault. The option `--only`
    /// selects rows by this name.
    pub(super) fn with(self, fault: Fault) -> String {
        format!("{}: {}", self.name(), fault.name())
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) setting: &'static str,
    pub(super) fault: &'static str,
    /// Seconds from the new master's first accepted write to the last write that the old master
    /// acknowledged with the `setting` of this row.
    pub(super) two_masters_seconds: f64,
    pub(super) acked: usize,
    pub(super) lost: usize,
    pub(super) refused: usize,
    /// Reasons for which this row of the failover table is of no use.
    pub(super) doubts: Vec<String>,
}

impl Row {
    pub(super) fn head() -> String {
        format!(
            "{:14}{:26}{:>14}{:>10}{:>10}{:>10}",
            "setting", "fault", "two masters s", "acked", "lost", "refused"
        )
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{:14}{:26}{:>14.2}{:>10}{:>10}{:>10}{}",
            self.setting,
            self.fault,
            self.two_masters_seconds,
            self.acked,
            self.lost,
            self.refused,
            if self.doubts.is_empty() { "" } else { "  NOT GOOD" }
        )
    }
}

pub(super) async fn row(
    setting: Setting,
    fault: Fault,
    out: &Path,
    stop: &mut Stop,
) -> Result<Row, Failure> {
    let file = out.join("plain.jsonl");
    let ledger = Ledger::new(&file, StdRng::seed_from_u64(1))?;
    let max_lag = if setting == Setting::MinReplicas { 2 } else { 0 };
    let shape = Shape {
        groups: 1,
        clients: 0,
        down_after_ms: 5_000,
        max_lag,
        max_ttl_ms: 1_000,
        all_replicas: false,
        defeat: false,
    };
    let mut group = Group::up(shape, ledger)?;
    fault.prepare(&group).await?;
    let mut writer = Writer::start(&group, if let Setting::Wait(k) = setting { k } else { 0 })?;
    stop.wait(Duration::from_secs(2)).await?;
    let struck = strike(fault, &mut group, stop).await?;
    let fates = writer.end(&group)?;
    let events = group.end().await?;
    let facts = Facts::of(&events);
    let both = facts.first_promotion(struck).map_or(0, |begun| fates.last.saturating_sub(begun));
    let mut doubts = Vec::new();
    if facts.first_promotion(struck).is_none() {
        doubts.push("no other server was promoted".to_owned());
    }
    // There are some hundred writes per second, even with `WAIT` on a busy machine.
    if fates.acked < 100 {
        doubts.push(format!("only {} writes were acknowledged", fates.acked));
    }
    Ok(Row {
        setting: setting.name(),
        fault: fault.name(),
        two_masters_seconds: (both / 10_000_000) as f64 / 100.0,
        acked: fates.acked,
        lost: fates.lost,
        refused: fates.refused,
        doubts,
    })
}

/// Injects the fault in the same way as for the rows about locks of the library. Waits only until
/// the old master is a replica or dead, not for a quarantine.
async fn strike(fault: Fault, group: &mut Group, stop: &mut Stop) -> Result<u64, Failure> {
    /// Duration of a network cut after its other side has a new master.
    const CUT: Duration = Duration::from_secs(8);
    let boxes = |list: &[u8]| list.iter().map(|b| Place::Box(1, *b)).collect::<Vec<_>>();
    let mut at = now();
    match fault {
        Fault::Isolated => group.cut(&boxes(&[1, 4]), &boxes(&[2, 3, 5, 6])).await?,
        Fault::Split => group.cut(&boxes(&[1, 2]), &boxes(&[3, 4, 5, 6])).await?,
        Fault::Priority => {
            group.cut(&boxes(&[1]), &boxes(&[2])).await?;
            stop.wait(Duration::from_secs(6)).await?;
            at = now();
            group.world.break_(&["kill", group.name(), "--server", "a1"]).await?;
        }
        _ => group.world.break_(&["failover", group.name()]).await?,
    }
    group.until_named(at, stop).await?;
    if fault.cuts_clients() {
        stop.wait(CUT).await?;
        group.mend().await?;
    } else if fault == Fault::Priority {
        group.mend().await?;
    }
    if fault != Fault::Priority {
        group.until_replica(0, at, stop).await?;
    }
    stop.wait(Duration::from_secs(2)).await?;
    Ok(at)
}

impl Group {
    async fn until_replica(&self, n: usize, since: u64, stop: &mut Stop) -> Result<(), Failure> {
        let addr = self.server(n);
        self.until(stop, since, "the old master to be a replica", |events| {
            let last = events.iter().rev().find_map(|e| match &e.kind {
                EventKind::Answers { server, to_write } if **server == *addr => Some(*to_write),
                _ => None,
            });
            (last == Some(WriteReply::Replica)).then_some(())
        })
        .await
    }
}

struct Writer(Child);

impl Writer {
    fn start(group: &Group, wait: u8) -> Result<Self, Failure> {
        let mut command = group.world.inside();
        command.arg(std::env::current_exe()?).arg("table-writer");
        command.args(["--server", group.server(0), "--wait", &wait.to_string()]);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?))
    }

    /// Ends the process that writes without locks. It then compares its writes with the data of the
    /// current master.
    fn end(&mut self, group: &Group) -> Result<Fates, Failure> {
        let events = group.ledger.borrow();
        let facts = Facts::of(events.so_far());
        let (_, master) = facts.master().ok_or("no Sentinel names a master")?;
        let mut input = self.0.stdin.take().ok_or("no input")?;
        writeln!(input, "{master}")?;
        let mut line = String::new();
        let output = self.0.stdout.take().ok_or("no output")?;
        BufReader::new(output).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
