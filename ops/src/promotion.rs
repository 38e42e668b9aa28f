//! The steps of a planned handover by which a replica becomes the master of its group.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use tokio::time::{Instant, sleep, timeout_at};

use super::deployment::GroupLogin;
use super::facts::{Role, is_plain, join};
use super::gather::conn::{Conn, fields, raw, text};
use super::gather::sentinel::in_tilt;
use super::gather::server::read_role;
use super::handover::{Closed, Handover, LOOK};
use super::masters::{self, Master};
use palisade::internal::Endpoint;
use palisade::internal::MARKER;

#[cfg(test)]
mod tests;

const TOGETHER: Duration = Duration::from_secs(30);

pub(super) struct Promotion<'a> {
    pub(super) of: &'a Handover,
    pub(super) group: &'a GroupLogin,
    pub(super) master: &'a Master,
}

impl Promotion<'_> {
    /// So that a handover does not stop half-way. Without an answer of `ACL DRYRUN` a step counts
    /// as allowed.
    pub(super) async fn rights(&self) -> Result<(), String> {
        let at = &self.master.at;
        let conn = self.master.open(&self.of.deployment).await?;
        let user = conn.query("ACL WHOAMI", "ACL WHOAMI", text).await.ok();
        let Some(user) = user.filter(|name| is_plain(name)) else { return Ok(()) };
        for step in ["MULTI", "EXEC", "REPLICAOF 127.0.0.1 1", "CONFIG REWRITE"] {
            let question = format!("ACL DRYRUN {user} {step}");
            let answer = conn.query(&question, "ACL DRYRUN", text).await.ok();
            // Servers before 7.0 have no `ACL DRYRUN`.
            if let Some(why) = answer.filter(|answer| answer != "OK") {
                let why = conn.secrets().clean(&why);
                let step = step.split(" 127").next().unwrap_or_default();
                return Err(format!(
                    "{at}: {user} may not send {step}, which a handover needs: {why}"
                ));
            }
        }
        Ok(())
    }

    /// A Sentinel in tilt accepts a failover and begins it half a minute later.
    pub(super) async fn able(&self) -> Result<Vec<String>, String> {
        let (mut able, mut reasons) = (Vec::new(), Vec::new());
        for at in &self.group.sentinels {
            match self.sentinel(at).await {
                // A user without the right to `INFO` may still ask for a failover.
                Ok(conn) if in_tilt(&conn).await != Ok(true) => able.push(at.clone()),
                Ok(_) => reasons.push(format!(
                    "{at} is in tilt: its clock jumped or it stood still, so it begins no failover \
                     for half a minute; try again after that"
                )),
                Err(why) => reasons.push(format!("{at}: {why}")),
            }
        }
        if able.is_empty() {
            return Err(format!("no Sentinel can begin a failover: {}", reasons.join("; ")));
        }
        Ok(able)
    }

    /// Makes one of these Sentinels promote a replica before `until`. Returns the address of the
    /// replica as soon as the replica reports the role of a master.
    pub(super) async fn promoted(&self, able: &[String], until: Instant) -> Result<String, String> {
        let asked = self.ask_for_failover(able).await?;
        loop {
            for at in &self.master.replicas {
                let opened = masters::open(&self.target(at), &self.of.deployment).await;
                let Ok(conn) = opened else { continue };
                if conn.query("ROLE", "ROLE", read_role).await == Ok(Role::Master) {
                    return Ok(at.clone());
                }
            }
            if Instant::now() >= until {
                let reset = format!("SENTINEL RESET {}", self.group.name);
                let reset = format!("{} {reset}", self.group.sentinel.hand().to(&asked));
                return Err(format!(
                    "Sentinel {asked} accepted the failover, but promoted no replica in time. The \
                     request stands: if it still promotes one, that is an ordinary failover with \
                     its quarantine. `{reset}` takes the request back while no replica says that \
                     it is a master; later it undoes the promotion, and costs a second quarantine"
                ));
            }
            sleep(LOOK).await;
        }
    }

    /// One Sentinel after the other, until one accepts; returns its address.
    async fn ask_for_failover(&self, able: &[String]) -> Result<String, String> {
        let mut reasons = Vec::new();
        for at in able {
            let conn = match self.sentinel(at).await {
                Ok(conn) => conn,
                Err(why) => {
                    reasons.push(format!("{at}: {why}"));
                    continue;
                }
            };
            let command = redis::cmd("SENTINEL").arg("FAILOVER").arg(&self.group.name).take();
            match conn.execute(&command, "SENTINEL FAILOVER").await {
                Ok(_) => return Ok(at.clone()),
                Err(why) => reasons.push(format!("{at}: {why}")),
            }
        }
        Err(format!("no Sentinel begins a failover: {}", reasons.join("; ")))
    }

    async fn sentinel(&self, at: &str) -> Result<Conn, String> {
        masters::open(&self.group.sentinel.at(at), &self.of.deployment).await
    }

    pub(super) fn target(&self, at: &str) -> Endpoint {
        self.group.data.at(self.of.deployment.reach(at))
    }

    /// The same transaction reads the old master's mark. If it is gone, the old master may have
    /// answered requests since: an error. Returns a note for the operator, or an empty text.
    pub(super) async fn demote(&self, new: &str, closed: &Closed) -> Result<String, String> {
        let old = &self.master.at;
        let doubt = |why: String| format!("{old}: {why}");
        let (host, port) =
            new.rsplit_once(':').ok_or_else(|| doubt(format!("{new} is not an address")))?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let conn = self.master.open(&self.of.deployment).await.map_err(doubt)?;
        let steps = [
            redis::cmd("MULTI"),
            redis::cmd("GET").arg(MARKER).take(),
            redis::cmd("REPLICAOF").arg(host).arg(port).take(),
            redis::cmd("EXEC"),
        ];
        let mut last = Value::Nil;
        for step in &steps {
            last = conn.needed(step).await.map_err(doubt)?;
        }
        let mark = match &last {
            Value::Array(answers) => answers.first().and_then(raw),
            _ => None,
        };
        if mark.as_ref() != Some(&closed.marker.to_string()) {
            let why = "it was opened and may have been used after it was closed";
            return Err(doubt(why.to_owned()));
        }
        // So that it is still a replica after a restart.
        Ok(match conn.query("CONFIG REWRITE", "CONFIG REWRITE", |_| Some(())).await {
            Ok(()) => String::new(),
            Err(why) => format!(
                ", but could not write that to its configuration file ({why}): after a restart it \
                 may be a master again, so write `replicaof {host} {port}` there"
            ),
        })
    }

    /// Returns the epoch in which a majority of the known Sentinels names the new master, about a
    /// second after the promotion. A marker below it would begin a quarantine, and one above it
    /// would hide a later promotion (quarantine 16). `None` if the Sentinels show no epochs.
    pub(super) async fn epoch(&self, new: &str, until: Instant) -> Result<Option<u64>, String> {
        let Master { sentinels, known, epoch: Some(before), .. } = self.master else {
            return Ok(None);
        };
        // One that was asked between two promotions says more later.
        let mut heard = BTreeMap::new();
        let majority = async {
            let ask = |at: &String, pause| {
                let at = at.clone();
                async move {
                    sleep(pause).await;
                    let names = self.names(&at).await;
                    (at, names)
                }
            };
            let mut looks: FuturesUnordered<_> =
                sentinels.iter().map(|at| ask(at, Duration::ZERO)).collect();
            while let Some((at, names)) = looks.next().await {
                looks.push(ask(&at, LOOK));
                match names {
                    Some((master, epoch)) if master == new && epoch > *before => {
                        heard.insert(at, epoch);
                    }
                    Some(_) => {
                        heard.remove(&at);
                    }
                    None => {}
                }
                let epochs: Vec<_> = heard.values().copied().collect();
                if let Some(epoch) = masters::agreed_epoch(&epochs, *known) {
                    return epoch;
                }
            }
            std::future::pending().await
        };
        let agreed = timeout_at(until, majority).await;
        agreed.map(Some).map_err(|_| {
            format!(
                "only {} of {known} known Sentinels named {new} in the epoch of its promotion in \
                 time, and clients need a majority: see `palisade doctor` for the others; a longer \
                 --closed-for waits longer",
                heard.len()
            )
        })
    }

    async fn names(&self, at: &str) -> Option<(String, u64)> {
        let conn = self.sentinel(at).await.ok()?;
        let conn = &conn;
        let ask = |what: &'static str| async move {
            let command = redis::cmd("SENTINEL").arg(what).arg(&self.group.name).take();
            conn.execute(&command, "SENTINEL").await.ok()
        };
        // So that no epoch is later than its address.
        let epoch: u64 = fields(&ask("MASTER").await?)?.get("config-epoch")?.parse().ok()?;
        let Value::Array(address) = ask("GET-MASTER-ADDR-BY-NAME").await? else { return None };
        let [host, port] = address.as_slice() else { return None };
        Some((join(&text(host)?, &text(port)?), epoch))
    }

    /// For at most `TOGETHER`.
    pub(super) async fn together(&self, new: &str, tell: &impl Fn(&str)) {
        let until = Instant::now() + TOGETHER;
        loop {
            let Ok((_, found)) = masters::find(&self.of.deployment).await else { return };
            let state = match found.into_iter().next().map(|f| f.master) {
                Some(Ok(master)) if master.at == new => {
                    return tell(&format!("all Sentinels and replicas follow {new}"));
                }
                Some(Ok(master)) => format!("the Sentinels name {}", master.at),
                Some(Err(absent)) => absent.why(),
                None => return,
            };
            if Instant::now() >= until {
                let not = "not all Sentinels and replicas follow yet";
                return tell(&format!("{not}: {state}; check with `palisade doctor`"));
            }
            sleep(4 * LOOK).await;
        }
    }
}
