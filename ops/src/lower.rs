//! Lowers the settings that all clients of a node share. Clients only raise them, because only a
//! person knows that the programs which asked for more have ended.

use std::fmt;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use super::Deployment;
use super::marking;
use super::masters::Master;
use super::script::{Kind, Refusal};
use super::shared_settings::{Place, SharedSettings, UNMARKED, find, look};
use palisade::ConfigError;
use palisade::internal::AtMost;
use palisade::internal::lineage::Lowering;

/// A handle that has nothing to do sends a batch every two seconds, and raises the marker with it.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Once the wait is over.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// After the wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// Lowers the settings that all clients of the nodes share, and an epoch above that of the group's
/// Sentinels, which a program of another group has left or a reset of theirs.
///
/// Before it is run, every program that asks for more has to have ended; nothing can prove that.
/// Each of them logs `settings_disagree` when it meets clients with other settings.
///
/// ```no_run
/// # async fn demo() -> Result<(), palisade::ConfigError> {
/// use palisade_ops::{Deployment, Lower};
/// use std::time::Duration;
/// let nodes = Deployment::new().node("sentinel://10.0.0.1,10.0.0.2,10.0.0.3/orders-a");
/// let lower = Lower::new(nodes).max_ttl(Duration::from_secs(15));
/// println!("{}", lower.run(|step| println!("{step}")).await?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is lowered before it is run"]
pub struct Lower {
    deployment: Deployment,
    max_ttl: Option<Duration>,
    clock_error: Option<Duration>,
}

/// The result of [`Lower::run`] for each node. `Display` writes a line for each node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it may contain a refusal"]
pub struct Lowered {
    /// Each node with its result.
    pub nodes: Vec<(String, NodeLowered)>,
}

/// The result of [`Lower::run`] for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeLowered {
    /// The settings were lowered, and no client has raised them within some seconds.
    Done(SharedSettings),
    /// The settings were not larger than the wanted ones.
    Already(SharedSettings),
    /// The settings were lowered, and a client has raised one of them again. The text names it.
    CameBack(String),
    /// Nothing was changed. The text has the reason: if a client has asked for more meanwhile, the
    /// name and value of the setting.
    Refused(String),
    /// Nothing was changed, because another node was refused or not reached.
    Left,
    /// The server could not be reached, or did not answer.
    Unreachable(String),
}

struct Begun<'a> {
    master: &'a Master,
    window: Duration,
    lowering: Lowering,
    /// In ms, for a client with the new settings.
    longest: u64,
    /// By this machine's clock, as the server said last.
    over: Instant,
}

impl Lowered {
    /// Returns true if no node has larger settings than wanted.
    pub fn is_done(&self) -> bool {
        let is = |one: &NodeLowered| matches!(one, NodeLowered::Done(_) | NodeLowered::Already(_));
        self.nodes.iter().all(|(_, one)| is(one))
    }

    /// Returns the exit code: 0 if no node has larger settings than wanted, 69 if a node could not
    /// be reached and none was refused, else 2.
    pub fn exit_code(&self) -> u8 {
        let refused =
            |one: &NodeLowered| matches!(one, NodeLowered::Refused(_) | NodeLowered::CameBack(_));
        if self.is_done() {
            0
        } else if self.nodes.iter().any(|(_, one)| refused(one)) {
            2
        } else {
            69
        }
    }
}

impl fmt::Display for Lowered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (node, one) in &self.nodes {
            match one {
                NodeLowered::Done(now) | NodeLowered::Already(now) => {
                    let done = matches!(one, NodeLowered::Done(_));
                    let what = if done { "lowered" } else { "not larger before" };
                    let (length, error) = (AtMost(now.quarantine), now.clock_error);
                    writeln!(f, "{node}: {what}: quarantine {length}, clock_error {error:?}")?;
                }
                NodeLowered::CameBack(why) => writeln!(f, "{node}: lowered, but {why}")?,
                NodeLowered::Refused(why) => writeln!(f, "{node}: not lowered: {why}")?,
                NodeLowered::Left => {
                    writeln!(f, "{node}: not lowered, because another node cannot be")?;
                }
                NodeLowered::Unreachable(why) => writeln!(f, "{node}: not reached: {why}")?,
            }
        }
        Ok(())
    }
}

impl Lower {
    /// Creates a change of all nodes of a deployment that lowers nothing yet.
    pub fn new(deployment: Deployment) -> Self {
        Self { deployment, max_ttl: None, clock_error: None }
    }

    /// Sets the longest lease that any client has from now on: at most one day. The failover window
    /// is added that clients with these addresses have (`failover_window`, or by the settings of a
    /// group's servers).
    pub fn max_ttl(mut self, span: Duration) -> Self {
        self.max_ttl = Some(span);
        self
    }

    /// Sets the largest clock error that any client reckons with from now on: less than half of
    /// `max_ttl`, and at least a quarter of the present one. Lower it in steps where that is not
    /// enough.
    pub fn clock_error(mut self, error: Duration) -> Self {
        self.clock_error = Some(error);
        self
    }

    /// Lowers the settings on all nodes.
    ///
    /// Waits for one quarantine and twice the clock error, both the present ones, by the servers'
    /// clocks: until then a lease or a fencing token of the old settings may be in use. Calls
    /// `tell` with the time that is left, every ten seconds or every minute. Then writes the new
    /// settings on each server, if its clients have asked for nothing else meanwhile, and looks
    /// some seconds later if one has raised them again. Nothing is written if a node is refused or
    /// cannot be reached before the wait. A server that does not answer in the wait is asked again
    /// until half a minute after it.
    ///
    /// # Errors
    /// [`ConfigError`] if a setting is invalid or none is given. Failures of the nodes are in the
    /// result.
    ///
    /// # Cancellation safety
    /// If the future is dropped, each node has either its old settings or the new ones.
    pub async fn run(&self, tell: impl Fn(&str)) -> Result<Lowered, ConfigError> {
        self.check()?;
        let places = find(&self.deployment).await?;
        let mut begun = join_all(places.iter().map(|place| self.begin(place))).await;
        let fails = |one: &Result<Begun<'_>, NodeLowered>| {
            matches!(one, Err(NodeLowered::Refused(_) | NodeLowered::Unreachable(_)))
        };
        let named = |results: Vec<NodeLowered>| {
            let names = places.iter().map(|place| place.node.clone());
            Lowered { nodes: names.zip(results).collect() }
        };
        if begun.iter().any(fails) {
            let left = |one: Result<Begun<'_>, NodeLowered>| one.err().unwrap_or(NodeLowered::Left);
            return Ok(named(begun.into_iter().map(left).collect()));
        }
        self.wait(&mut begun, &tell).await;
        let tell = &tell;
        let written = begun.iter().map(|one| async move {
            match one {
                Ok(one) => self.write(one, tell).await.err(),
                Err(ended) => Some(ended.clone()),
            }
        });
        let ended = join_all(written).await;
        if ended.iter().any(Option::is_none) {
            tell("lowered; looking if a program raises it again");
            sleep(LOOK_AGAIN).await;
        }
        let last = begun.iter().zip(ended).map(|(one, ended)| async move {
            match (one, ended) {
                (Ok(one), None) => self.confirmed(one).await,
                (_, ended) => ended.unwrap_or(NodeLowered::Left),
            }
        });
        Ok(named(join_all(last).await))
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.max_ttl.is_none() && self.clock_error.is_none() {
            let rule = "give max_ttl, clock_error or both";
            return Err(ConfigError::new("max_ttl", "missing", rule));
        }
        let day = Duration::from_secs(86_400);
        if let Some(span) = self.max_ttl.filter(|span| *span > day || span.is_zero()) {
            let rule = "more than zero and at most one day";
            return Err(ConfigError::new("max_ttl", format!("{span:?}"), rule));
        }
        Ok(())
    }

    async fn begin<'a>(&self, place: &'a Place) -> Result<Begun<'a>, NodeLowered> {
        let unreachable = |why: &str| NodeLowered::Unreachable(why.to_owned());
        let master = place.master.as_ref().map_err(|why| unreachable(why))?;
        let refused = |why: String| NodeLowered::Refused(format!("{}: {why}", master.at));
        let looked =
            look(&self.deployment, master).await.map_err(|refusal| match refusal.kind {
                Kind::Failed => unreachable(&format!("{}: {}", master.at, refusal.why)),
                _ => refused(refusal.why),
            })?;
        let marker = looked.shown.marker.ok_or_else(|| refused(UNMARKED.to_owned()))?;
        let length = |max_ttl: Duration, window| millis(max_ttl.saturating_add(window));
        let quarantine = self.max_ttl.map_or(marker.quarantine, |ttl| length(ttl, place.window));
        let clock_error = self.clock_error.map_or(marker.clock_error, micros);
        let to = (quarantine, clock_error, master.epoch);
        let lowering = Lowering::new(marker, looked.now(), to);
        let Some(lowering) = lowering.map_err(refused)? else {
            return Err(NodeLowered::Already(SharedSettings::of(&marker, place.window, None)));
        };
        let longest = self.max_ttl.map_or(0, |ttl| length(ttl, place.longest_window));
        let over = Instant::now() + Duration::from_millis(lowering.left(looked.now()));
        Ok(Begun { master, window: place.window, lowering, longest, over })
    }

    /// A node whose marker was changed is not waited for. One that does not answer is asked again,
    /// until it has had `PATIENCE` more than the wait takes.
    async fn wait(&self, begun: &mut [Result<Begun<'_>, NodeLowered>], tell: &impl Fn(&str)) {
        loop {
            let looks = begun.iter().map(|one| async move {
                let Ok(one) = one else { return Ok(Duration::ZERO) };
                self.left(one).await
            });
            let looks = join_all(looks).await;
            let now = Instant::now();
            let silent = heard(begun, looks, now);
            for why in &silent {
                tell(&format!("{why}; asking again"));
            }
            let left = over(begun, now).saturating_duration_since(now);
            if left.is_zero() && silent.is_empty() {
                return;
            }
            if left.is_zero() {
                sleep(ASK_AGAIN).await;
                continue;
            }
            tell(&format!(
                "waiting for another {}: until then a lease or a token of the old settings may be \
                 in use",
                AtMost(left)
            ));
            let pause = if left > Duration::from_secs(120) { 60 } else { 10 };
            sleep(left.min(Duration::from_secs(pause))).await;
        }
    }

    /// Zero if the marker was changed. An error if the server does not answer.
    async fn left(&self, one: &Begun<'_>) -> Result<Duration, String> {
        let looked = match look(&self.deployment, one.master).await {
            Ok(looked) => looked,
            Err(Refusal { kind: Kind::Failed, why }) => return Err(why),
            Err(_) => return Ok(Duration::ZERO),
        };
        let marker = looked.shown.marker;
        let is_same = marker.is_some_and(|marker| one.lowering.check(&marker).is_ok());
        let left = if is_same { one.lowering.left(looked.now()) } else { 0 };
        Ok(Duration::from_millis(left))
    }

    async fn write(&self, one: &Begun<'_>, tell: &impl Fn(&str)) -> Result<(), NodeLowered> {
        let at = &one.master.at;
        let written = async {
            let conn = one.master.open(&self.deployment).await.map_err(Refusal::failed)?;
            let lowered = marking::rewrite(&conn, (&self.deployment, one.master), |looked| {
                let refused = |why| Refusal { kind: Kind::Refused, why };
                let gone = || refused("its marker is gone".to_owned());
                let marker = looked.shown.marker.ok_or_else(gone)?;
                Ok((marker.lowered(&looked.shown, &one.lowering).map_err(refused)?, ()))
            });
            lowered.await
        };
        match written.await {
            Ok(((), few)) => {
                if let Some(few) = few {
                    tell(&format!(
                        "{at}: lowered, but {few}: a failover to another one brings the earlier \
                         values back, also the epoch: look by `palisade settings` after one"
                    ));
                }
                Ok(())
            }
            Err(Refusal { kind: Kind::Failed, why }) => {
                let then = "it may be lowered: look by `palisade settings`";
                Err(NodeLowered::Unreachable(format!("{at}: {why}; {then}")))
            }
            Err(refusal) => Err(NodeLowered::Refused(format!("{at}: {}", refusal.why))),
        }
    }

    async fn confirmed(&self, one: &Begun<'_>) -> NodeLowered {
        let at = &one.master.at;
        let then = "it was lowered, and could not be read again";
        match look(&self.deployment, one.master).await {
            Ok(looked) => match looked.shown.marker {
                Some(marker) => match one.lowering.holds(&marker, one.longest) {
                    Ok(()) => NodeLowered::Done(SharedSettings::of(&marker, one.window, None)),
                    Err(why) => NodeLowered::CameBack(format!("{at}: {why}")),
                },
                None => NodeLowered::Refused(format!("{at}: {then}: its marker is gone")),
            },
            Err(refusal) => NodeLowered::Unreachable(format!("{at}: {then}: {}", refusal.why)),
        }
    }
}

/// At `now`. Returns the causes of those that are asked again.
fn heard(
    begun: &mut [Result<Begun<'_>, NodeLowered>],
    looks: Vec<Result<Duration, String>>,
    now: Instant,
) -> Vec<String> {
    let patient = now < over(begun, now) + PATIENCE;
    let mut silent = Vec::new();
    for (one, looked) in begun.iter_mut().zip(looks) {
        let Ok(node) = one else { continue };
        match looked {
            // A wait that is over has one end: moved on with the clock, it would prolong the
            // patience with the others.
            Ok(Duration::ZERO) => node.over = node.over.min(now),
            Ok(left) => node.over = now + left,
            Err(why) => {
                let why = format!("{}: {why}", node.master.at);
                if patient {
                    silent.push(why);
                } else {
                    *one = Err(NodeLowered::Unreachable(why));
                }
            }
        }
    }
    silent
}

/// `now` if there is none.
fn over(begun: &[Result<Begun<'_>, NodeLowered>], now: Instant) -> Instant {
    begun.iter().flatten().map(|one| one.over).max().unwrap_or(now)
}

/// Rounded up, as a client counts them.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade::internal::Endpoint;
    use palisade::internal::lineage::{Marker, ReplicationId};

    use crate::shared_settings::tests::settings;

    #[test]
    fn the_exit_code_says_the_worst() {
        let of = |all: &[NodeLowered]| {
            let nodes = all.iter().map(|one| ("n".to_owned(), one.clone())).collect();
            Lowered { nodes }.exit_code()
        };
        let done = NodeLowered::Done(settings());
        let refused = NodeLowered::Refused("x".into());
        let away = NodeLowered::Unreachable("x".into());
        assert_eq!(of(&[done.clone(), NodeLowered::Already(settings())]), 0);
        assert_eq!(of(&[NodeLowered::Left, away.clone()]), 69);
        assert_eq!(of(&[done.clone(), away, refused]), 2);
        assert_eq!(of(&[done, NodeLowered::CameBack("x".into())]), 2);
    }

    fn master() -> Master {
        Master {
            at: "127.0.0.1:1".to_owned(),
            target: Endpoint::parse("redis://127.0.0.1:1").unwrap(),
            replicas: Vec::new(),
            without_backlog: false,
            run_id: String::new(),
            epoch: None,
            sentinels: Vec::new(),
            known: 0,
            hand: String::new(),
            evicts: None,
            appends_nothing: false,
            keeps_nothing: false,
        }
    }

    fn begun(master: &Master, over: Instant) -> Begun<'_> {
        let replid = ReplicationId::parse(&"0".repeat(40)).unwrap();
        let before = Marker { quarantine: 10_000, ..Marker::born(1, 2, 3, replid) };
        let lowering = Lowering::new(before, 0, (5_000, 0, None)).unwrap().unwrap();
        Begun { master, window: Duration::ZERO, lowering, longest: 0, over }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_stays_silent_is_asked_again_and_the_last_cause_is_named() {
        let (master, started) = (master(), Instant::now());
        let over = started + Duration::from_secs(10);
        let mut begun: [Result<Begun<'_>, NodeLowered>; 1] = [Ok(begun(&master, over))];
        let asked = std::cell::Cell::new(0_usize);
        let tell = |step: &str| asked.set(asked.get() + usize::from(step.contains("asking again")));
        Lower::new(Deployment::new()).wait(&mut begun, &tell).await;
        let [Err(NodeLowered::Unreachable(why))] = &begun else { panic!("it was reached") };
        assert!(why.starts_with("127.0.0.1:1: "), "{why}");
        let waited = started.elapsed().as_secs();
        assert!((40..=45).contains(&waited) && asked.get() >= 5, "{waited}, {asked:?}");
    }

    #[test]
    fn servers_that_answer_do_not_prolong_the_patience_with_one_that_is_silent() {
        let (master, started, second) = (master(), Instant::now(), Duration::from_secs(1));
        let mut all: [Result<Begun<'_>, NodeLowered>; 3] =
            [12_u32, 10, 11].map(|left| Ok(begun(&master, started + left * second)));
        let mut given_up = None;
        for now in (0..100_u32).map(|s| s * second) {
            let left = |end: u32| Ok((end * second).saturating_sub(now));
            let looks = vec![left(12), Err("no answer".to_owned()), left(11)];
            let silent = heard(&mut all, looks, started + now);
            if silent.is_empty() {
                given_up.get_or_insert(now);
            }
        }
        assert_eq!(given_up, Some(12 * second + PATIENCE));
        let answers = [&all[0], &all[2]];
        assert!(answers.iter().all(|one| one.as_ref().is_ok_and(|one| one.over > started)));
        assert!(matches!(&all[1], Err(NodeLowered::Unreachable(why)) if why.contains("no answer")));
    }

    #[tokio::test]
    async fn without_a_value_nothing_is_asked() {
        let nodes = || Deployment::new().node("redis://127.0.0.1:1");
        let none = Lower::new(nodes()).run(|_| ()).await.unwrap_err().to_string();
        assert!(none.contains("give max_ttl, clock_error or both"), "{none}");
        let long = Lower::new(nodes()).max_ttl(Duration::from_secs(86_401));
        assert!(long.run(|_| ()).await.unwrap_err().to_string().contains("at most one day"));
    }
}
