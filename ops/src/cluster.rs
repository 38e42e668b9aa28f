//! Marks the slots of a cluster as new. Each slot has a marker of its own (rule cluster 1 in
//! docs/design), and the whole cluster is one vote.

use redis::{Pipeline, Value};

use super::Deployment;
use super::deployment::ClusterLogin;
use super::gather::conn::{Conn, fields, raw};
use super::init::{self, Init, LOST, Not, marked, used};
use super::keys::is_palisades;
use super::marking::{self, Looked, SWAP};
use super::masters::{Absent, Master, open};
use super::scan::{Scan, escaped};
use super::script::{self, Kind, Refusal};
use palisade::internal::lineage::{Marker, Shown};
use palisade::internal::{
    Endpoint, MARKER, NOTE, SETTLED, STAYS, cluster_masters, slot_key, slot_of, slot_owners,
};

pub(super) async fn deployment_of(
    deployment: &Deployment,
    target: &Result<Target, Absent>,
) -> Option<u64> {
    match target.as_ref().ok()? {
        Target::Cluster(cluster) => cluster.deployment(deployment).await,
        Target::Server(master) => {
            let conn = master.open(deployment).await.ok()?;
            Some(marking::look(&conn).await.ok()?.shown.marker?.deployment)
        }
    }
}

/// What has the markers of a node.
#[expect(clippy::large_enum_variant, reason = "there is one for each node")]
pub(super) enum Target {
    Server(Master),
    Cluster(Cluster),
}

impl Target {
    pub(super) fn at(&self) -> String {
        match self {
            Self::Server(master) => master.at.clone(),
            Self::Cluster(cluster) => cluster.at(),
        }
    }

    pub(super) async fn look(
        &self,
        deployment: &Deployment,
        prefix: Option<&str>,
    ) -> Result<(), Not> {
        match self {
            Self::Server(master) => init::look(deployment, master, prefix).await,
            Self::Cluster(cluster) => cluster.look(deployment, prefix).await,
        }
    }

    pub(super) async fn mark(&self, deployment: &Deployment, is_lost: bool, id: u64) -> Init {
        match self {
            Self::Server(master) => init::mark(deployment, master, is_lost, id).await,
            Self::Cluster(cluster) => cluster.mark(deployment, is_lost, id).await,
        }
    }
}

/// Sent in one write. Each write has the deployment's whole time-out.
const CHUNK: usize = 250;
const TRIES: usize = 5;

pub(super) struct Cluster {
    shards: Vec<Shard>,
    /// By its owner's address.
    pub(super) open: Vec<(String, Vec<String>)>,
}

struct Shard {
    master: Master,
    slots: Vec<u16>,
}

/// What may be written to a slot.
enum State {
    /// With when its data began, if it has granted since its first marker, and all is lost.
    New(Option<u64>),
    Marked,
    /// It has granted since its first marker.
    Used,
}

pub(super) async fn find(deployment: &Deployment, login: &ClusterLogin) -> Result<Cluster, Absent> {
    let by_name = login.like.is_tls();
    let reached = |(host, port): &(String, u16)| {
        let named =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let at = deployment.reach(&named).to_owned();
        let (host, port) = at.rsplit_once(':').unwrap_or((&at, ""));
        let host = host.trim_matches(['[', ']']);
        Endpoint::at(host, port.parse().unwrap_or_default(), &login.like)
    };
    let mut silent = String::new();
    let mut masters = std::collections::BTreeSet::new();
    for at in &login.servers {
        match nodes(deployment, at).await {
            Ok(answer) => masters.extend(cluster_masters(&answer, by_name)),
            Err(why) => silent = format!("{at}: {why}"),
        }
    }
    if masters.is_empty() {
        return Err(Absent::Unreachable(silent));
    }
    let (mut answers, mut open) = (Vec::new(), Vec::new());
    for at in masters.iter().map(reached) {
        let Ok(answer) = nodes(deployment, &at).await else { continue };
        open.push((at.to_string(), open_slots(&answer)));
        answers.push(answer);
    }
    open.retain(|(_, slots)| !slots.is_empty());
    let refused = |e: palisade::error::NodeError| Absent::Refused(e.detail().to_owned());
    let shards = slot_owners(&answers, by_name).map_err(refused)?.into_iter().map(|owner| {
        let target = reached(&owner.at);
        let master = Master {
            at: target.to_string(),
            target,
            replicas: owner.replicas,
            without_backlog: false,
            run_id: String::new(),
            epoch: Some(owner.epoch),
            sentinels: Vec::new(),
            known: 0,
            hand: String::new(),
            evicts: None,
            appends_nothing: false,
            keeps_nothing: false,
        };
        Shard { master, slots: owner.slots }
    });
    Ok(Cluster { shards: shards.collect(), open })
}

/// As `[77->-id]` or `[77-<-id]` in the server's own line.
fn open_slots(answer: &str) -> Vec<String> {
    let own = answer.lines().filter(|line| line.contains("myself"));
    let words = own.flat_map(str::split_whitespace).filter_map(|word| word.strip_prefix('['));
    words.filter_map(|word| Some(word.split_once('-')?.0.to_owned())).collect()
}

async fn nodes(deployment: &Deployment, at: &Endpoint) -> Result<String, String> {
    let conn = open(at, deployment).await?;
    conn.read(redis::cmd("CLUSTER").arg("NODES"), "CLUSTER NODES").await
}

/// What the doctor asks of a master.
pub(super) struct Asked<'a> {
    pub(super) at: &'a str,
    pub(super) replicas: usize,
    shard: &'a Shard,
}

impl Asked<'_> {
    pub(super) fn slots(&self) -> usize {
        self.shard.slots.len()
    }

    /// How many slots have no marker.
    pub(super) async fn unmarked(&self, deployment: &Deployment) -> Result<usize, String> {
        let looks = self.shard.look(deployment).await?;
        Ok(looks.iter().filter(|(_, looked)| looked.shown.is_empty).count())
    }

    /// Returns true if the server refuses all slots while one has no master.
    pub(super) async fn covers_all(&self, deployment: &Deployment) -> Result<bool, String> {
        let conn = self.shard.master.open(deployment).await?;
        let name = "cluster-require-full-coverage";
        let setting = redis::cmd("CONFIG").arg("GET").arg(name).take();
        let all = conn.needed(&setting).await?;
        Ok(fields(&all).is_some_and(|all| all.get(name).is_some_and(|value| value == "yes")))
    }
}

impl Cluster {
    pub(super) fn shards(&self) -> impl Iterator<Item = Asked<'_>> {
        self.shards.iter().map(|shard| Asked {
            at: &shard.master.at,
            replicas: shard.master.replicas.len(),
            shard,
        })
    }

    pub(super) fn at(&self) -> String {
        let masters: Vec<&str> = self.shards.iter().map(|shard| &*shard.master.at).collect();
        masters.join(", ")
    }

    /// As of other nodes, with each slot in the place of a server.
    pub(super) async fn look(
        &self,
        deployment: &Deployment,
        prefix: Option<&str>,
    ) -> Result<(), Not> {
        let (mut new, mut marked) = (0, 0);
        for shard in &self.shards {
            let unreachable =
                |why: String| Not::Now(Init::Unreachable(format!("{}: {why}", shard.master.at)));
            let looks = shard.look(deployment).await.map_err(unreachable)?;
            let mut empty = Vec::new();
            for (slot, looked) in &looks {
                match state(looked, shard.master.epoch, prefix.is_none()) {
                    Ok(State::New(_)) => empty.push(*slot),
                    Ok(State::Marked) => marked += 1,
                    Ok(State::Used) => {}
                    Err(Refusal { why, .. }) => {
                        let why = format!("{}: slot {slot}: {why}; {LOST}", shard.master.at);
                        return Err(Not::New(why));
                    }
                }
            }
            new += empty.len();
            if let Some(prefix) = prefix {
                shard.search(deployment, prefix, &empty).await?;
            }
        }
        match (new, marked) {
            (0, _) => {
                let note = "its slots were initialised or used before".to_owned();
                Err(Not::Marked(Init::Already { at: self.at(), note }))
            }
            (_, 0) => Ok(()),
            _ if prefix.is_none() => Ok(()),
            (new, marked) => Err(Not::New(format!(
                "{marked} slots are initialised and in use, and {new} are not: they join by \
                 themselves, each after one quarantine from its first use"
            ))),
        }
    }

    /// The first that a slot has.
    async fn names(&self, deployment: &Deployment) -> Option<(u64, u64)> {
        for shard in &self.shards {
            let looks = shard.look(deployment).await.ok()?;
            let markers = looks.iter().filter_map(|(_, looked)| looked.shown.marker);
            let named = markers.map(|marker| (marker.deployment, marker.vote));
            if let Some(names) = named.into_iter().find(|(_, vote)| *vote != 0) {
                return Some(names);
            }
        }
        None
    }

    pub(super) async fn deployment(&self, deployment: &Deployment) -> Option<u64> {
        self.names(deployment).await.map(|(deployment, _)| deployment)
    }

    pub(super) async fn mark(&self, deployment: &Deployment, is_lost: bool, id: u64) -> Init {
        let vote = self.names(deployment).await.map_or_else(rand::random, |(_, vote)| vote);
        let (mut slots, mut replicas, mut few) = (0, 0, Vec::new());
        for shard in &self.shards {
            match shard.mark(deployment, is_lost, (id, vote)).await {
                Ok((marked, have)) => {
                    slots += marked;
                    replicas += have;
                    if have < shard.master.replicas.len() {
                        few.push(shard.master.at.clone());
                    }
                }
                Err(why) => {
                    return Init::Doubtful(format!(
                        "{slots} slots were marked, and at {} the rest was not: {why}; the others \
                         join by themselves, each after one quarantine from its first use",
                        shard.master.at
                    ));
                }
            }
        }
        if !few.is_empty() {
            return Init::Doubtful(format!(
                "{slots} slots were marked, but not all replicas of {} have that: before it is \
                 used, find out why they lag",
                few.join(", ")
            ));
        }
        let note = Some(format!("{slots} slots"));
        Init::Marked { at: self.at(), replicas, note }
    }
}

fn state(looked: &Looked, epoch: Option<u64>, is_lost: bool) -> Result<State, Refusal> {
    // Its first use begins a history there.
    let has_moved = looked.shown.marker.is_some_and(|marker| epoch > Some(marker.epoch));
    match used(looked, None, is_lost) {
        // A slot is not connected to: the first use of its names writes its marker.
        Err(Refusal { .. }) if is_lost && looked.shown.is_empty => Ok(State::New(None)),
        Err(Refusal { kind: Kind::Marked, .. }) => Ok(State::Marked),
        Err(refusal) => Err(refusal),
        Ok(used) if !has_moved && (is_lost || used.is_none()) => Ok(State::New(used)),
        Ok(_) => Ok(State::Used),
    }
}

impl Shard {
    /// Each slot with what it shows, but for its note.
    async fn look(&self, deployment: &Deployment) -> Result<Vec<(u16, Looked)>, String> {
        let Some(first) = self.slots.first() else { return Ok(Vec::new()) };
        let conn = self.master.open(deployment).await?;
        let keys = [MARKER, NOTE].map(|key| slot_key(*first, key));
        let looked = marking::look_at(&conn, &keys).await.map_err(|refusal| refusal.why)?;
        let mut looks = Vec::new();
        for slots in self.slots.chunks(CHUNK) {
            let conn = self.master.open(deployment).await?;
            let mut gets = Pipeline::with_capacity(slots.len());
            for slot in slots {
                gets.cmd("GETRANGE").arg(slot_key(*slot, MARKER)).arg(0).arg(1_000);
            }
            let answers = conn.all_needed(&gets, slots.len()).await?;
            for (slot, answer) in slots.iter().zip(answers) {
                let text = raw(&answer?).unwrap_or_default();
                let marker = Marker::parse(&text, looked.now());
                let is_empty = text.is_empty();
                let shown = Shown { marker, is_empty, note: None, ..looked.shown };
                looks.push((*slot, Looked { text, shown }));
            }
        }
        Ok(looks)
    }

    /// A slot that is to be marked must not have a key of palisade.
    async fn search(
        &self,
        deployment: &Deployment,
        prefix: &str,
        empty: &[u16],
    ) -> Result<(), Not> {
        let at = &self.master.at;
        let pattern = (!prefix.is_empty()).then(|| format!("*{}*", escaped(prefix)));
        let mut scan = Scan::new(deployment, &self.master, pattern);
        let unreachable = |why: String| Not::Now(Init::Unreachable(format!("{at}: {why}")));
        while let Some((conn, keys)) = scan.next().await.map_err(unreachable)? {
            let found = keys.iter().find(|key| {
                let slot = slot_of(&String::from_utf8_lossy(key));
                is_palisades(key, prefix) && empty.binary_search(&slot).is_ok()
            });
            if let Some(key) = found {
                let key = conn.secrets().clean(&String::from_utf8_lossy(key));
                return Err(Not::New(format!("{at} is not new: it has the key \"{key}\"; {LOST}")));
            }
        }
        Ok(())
    }

    /// Returns how many slots were marked, and how many replicas have their markers.
    async fn mark(
        &self,
        deployment: &Deployment,
        is_lost: bool,
        names: (u64, u64),
    ) -> Result<(usize, usize), String> {
        let (mut done, mut have) = (0, self.master.replicas.len());
        let mut why = "programs use it at this moment: stop them, and run this again".to_owned();
        for _ in 0..TRIES {
            let looks = match self.look(deployment).await {
                Ok(looks) => looks,
                Err(late) => {
                    why = late;
                    continue;
                }
            };
            let new = |(slot, looked)| match state(&looked, self.master.epoch, is_lost) {
                Ok(State::New(used)) => Some((slot, looked, used)),
                _ => None,
            };
            let open: Vec<_> = looks.into_iter().filter_map(new).collect();
            if open.is_empty() {
                return Ok((done, have));
            }
            let written: Result<(), String> = async {
                for slots in open.chunks(CHUNK) {
                    let conn = self.master.open(deployment).await?;
                    done += self.write(&conn, slots, names).await?;
                    let wanted = self.master.replicas.len();
                    have = script::wait(&conn, wanted, deployment.within() / 2).await;
                }
                Ok(())
            }
            .await;
            // What was written is not written again.
            why = written.err().unwrap_or(why);
        }
        Err(why)
    }

    /// Returns how many were still as they were looked at.
    async fn write(
        &self,
        conn: &Conn,
        slots: &[(u16, Looked, Option<u64>)],
        names: (u64, u64),
    ) -> Result<usize, String> {
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(SWAP).take();
        let digest: String = conn.read(&load, "SCRIPT LOAD").await?;
        let mut swaps = Pipeline::with_capacity(slots.len());
        for (slot, looked, used) in slots {
            let marker = marked(looked, *used, names, self.master.epoch);
            let swap = swaps.cmd("EVALSHA").arg(&digest).arg(3);
            for key in [MARKER, SETTLED, STAYS] {
                swap.arg(slot_key(*slot, key));
            }
            swap.arg(&looked.text).arg(marker.to_string()).arg(looked.shown.replid.to_string());
            swap.arg(0).arg(looked.now() + marking::JUDGED);
        }
        let mut done = 0;
        for answer in conn.all_needed(&swaps, slots.len()).await? {
            let Value::Array(parts) = answer? else { continue };
            done += usize::from(parts.first().and_then(raw).as_deref() == Some("ok"));
        }
        Ok(done)
    }
}
