//! The values that the doctor's commands set: one for a whole group, so that no check finds fault
//! with what another one proposes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::super::facts::{
    Fields, Group, Role, Sentinel, Server, flagged, has_port, host_of, place,
};
use palisade::internal::{ADVISED_DOWN_AFTER, ADVISED_LAG, LAG_SLACK};

/// In ms; survives a short pause of a server.
pub(super) const DOWN_AFTER_MIN: u64 = 2_000;
/// In ms.
pub(super) const TIMEOUT_MAX: u64 = 60_000;
const TIMEOUT: u64 = 15_000;

/// Nobody can reach them.
pub(super) fn without_port(sentinel: &Sentinel) -> impl Iterator<Item = &Fields> {
    sentinel.others.iter().flatten().filter(|other| !has_port(other))
}

/// Itself included, without those at port 0, and those that nobody reaches and the user did not
/// name: it is to forget them.
pub(super) fn known(group: &Group, sentinel: &Sentinel) -> Result<u64, String> {
    let (_, others) = sentinel.counts()?;
    let is_there =
        |at: &String| group.sentinels.iter().any(|s| s.at == *at && (s.given || s.reached.is_ok()));
    let is_gone = |other: &&Fields| {
        let is_down = flagged(other, "s_down") || flagged(other, "disconnected");
        !has_port(other) || is_down && !place(other).is_some_and(|at| is_there(&at))
    };
    let gone = sentinel.others.iter().flatten().filter(is_gone).count() as u64;
    Ok(others.saturating_add(1).saturating_sub(gone).max(1))
}

pub(super) fn seen(group: &Group) -> u64 {
    let name = |s: &Sentinel| s.id.clone().unwrap_or_else(|_| s.at.clone());
    let heard: BTreeSet<String> = group.heard().map(name).collect();
    let silent = group.sentinels.iter().filter(|s| s.given && s.reached.is_err());
    (heard.len() + silent.count()) as u64
}

/// Their own number counts only if they agree.
pub(super) fn size(group: &Group) -> u64 {
    let all: BTreeSet<u64> = group.heard().filter_map(|s| known(group, s).ok()).collect();
    let seen = seen(group);
    match (all.first(), all.len()) {
        (Some(agreed), 1) => seen.max(*agreed),
        _ => seen,
    }
}

/// At least three, and an odd number.
pub(super) fn full_size(group: &Group) -> u64 {
    (size(group) | 1).max(3)
}

/// The usual one if it can do, else a majority.
pub(super) fn quorum(group: &Group) -> u64 {
    let majority = full_size(group) / 2 + 1;
    let range = majority..=size(group).max(majority);
    let all: Vec<u64> = group.heard().filter_map(|s| s.number("quorum")).collect();
    let count = |quorum: u64| all.iter().filter(|q| **q == quorum).count();
    let can_do = all.iter().copied().filter(|q| range.contains(q));
    can_do.max_by_key(|q| count(*q)).unwrap_or(majority)
}

/// Longer than the lag of the min-replicas check, which the commands lower to the advised one at
/// most.
pub(super) fn down_after(group: &Group) -> u64 {
    let all = group.heard().filter_map(|s| s.number("down-after-milliseconds"));
    let longest = all.max().unwrap_or_default();
    let least = (ADVISED_LAG + LAG_SLACK).as_millis().max(u128::from(DOWN_AFTER_MIN));
    if u128::from(longest) >= least {
        longest
    } else {
        u64::try_from(ADVISED_DOWN_AFTER.as_millis()).unwrap_or(u64::MAX)
    }
}

pub(super) fn set_down_after(group: &Group) -> Vec<String> {
    let wanted = down_after(group);
    let is_odd = |s: &&Sentinel| s.number("down-after-milliseconds").is_some_and(|ms| ms != wanted);
    let odd = group.heard().filter(is_odd);
    let set = format!("SENTINEL SET {} down-after-milliseconds {wanted}", group.name);
    odd.map(|s| s.by_hand(&set)).collect()
}

/// What this one has, at least as many as no two halves can have, no more than there are replicas,
/// and in any case what the address requires.
pub(super) fn min_replicas(group: &Group, now: Option<u32>) -> u64 {
    let servers = group.servers.len() as u64;
    let now = now.map_or(1, u64::from).min(servers.saturating_sub(1));
    now.max(servers / 2).max(1).max(u64::from(group.rule.replicas))
}

fn failover_timeout(group: &Group) -> u64 {
    let all = group.heard().filter_map(|s| s.number("failover-timeout"));
    all.filter(|ms| *ms <= TIMEOUT_MAX).max().unwrap_or(TIMEOUT)
}

/// What only a person knows of the Sentinels' login at the servers.
pub(super) const USER: &str = "<user of the Sentinels at the servers>";
pub(super) const PASSWORD: &str = "<its password>";

/// Without the login a Sentinel treats servers that work as down, and has a vote.
fn monitoring(group: &Group) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("down-after-milliseconds", down_after(group).to_string()),
        ("failover-timeout", failover_timeout(group).to_string()),
    ];
    match (&group.hand.user, group.hand.has_password) {
        (Some(_), _) => all.extend([("auth-user", USER.into()), ("auth-pass", PASSWORD.into())]),
        (None, true) => all.push(("auth-pass", "<password of the servers>".into())),
        (None, false) => {}
    }
    all
}

/// What only a person knows is outside the quotes: the shell refuses the command as long as it is
/// there.
pub(super) fn new_sentinel(group: &Group) -> String {
    let (name, quorum) = (&group.name, quorum(group));
    let master = group.master().filter(|master| master.role == Ok(Role::Master));
    let at = master.map_or("<host of the master>:<port>", |master| master.at.as_str());
    let (host, port) = parts(at);
    let settings = monitoring(group);
    let settings = settings.iter().map(|(set, value)| format!("sentinel {set} {name} {value}"));
    let all = std::iter::once(format!("sentinel monitor {name} {host} {port} {quorum}"));
    let echo = |line: String| match line.split_once('<') {
        Some((known, rest)) => format!("echo '{known}'<{rest}"),
        None => format!("echo '{line}'"),
    };
    let lines: Vec<String> = all.chain(settings).map(echo).collect();
    format!("{{ {}; }} >>sentinel.conf; redis-sentinel sentinel.conf", lines.join("; "))
}

pub(super) fn also_needed(group: &Group) -> &'static str {
    let asks = |s: &Sentinel| s.tls || s.hand.contains("--askpass");
    if group.hand.tls || group.heard().any(asks) {
        ", with the tls and password lines of the others' sentinel.conf"
    } else {
        ""
    }
}

pub(super) fn monitor_at(
    group: &Group,
    sentinel: &Sentinel,
    (host, port): (&str, &str),
) -> Vec<String> {
    let (name, quorum) = (&group.name, quorum(group));
    let settings = monitoring(group);
    let settings = settings.iter().map(|(set, value)| format!("SENTINEL SET {name} {set} {value}"));
    let all = std::iter::once(format!("SENTINEL MONITOR {name} {host} {port} {quorum}"));
    all.chain(settings).map(|command| sentinel.by_hand(&command)).collect()
}

/// None if nobody knows the machine of the master that the others name.
pub(super) fn monitor(group: &Group, sentinel: &Sentinel) -> Vec<String> {
    let Some(at) = group.master_at() else { return Vec::new() };
    let (host, port) = parts(&at);
    let are_here = group.heard().all(|s| is_local(host_of(&s.at)));
    match machine(group) {
        _ if !is_local(host) || are_here => monitor_at(group, sentinel, (host, port)),
        Some(machine) => monitor_at(group, sentinel, (machine, port)),
        None => Vec::new(),
    }
}

/// Returns the host that a local address of the group means: that of all Sentinels. Sentinels at
/// several hosts mean several machines, and then nobody knows which one is right.
pub(super) fn machine(group: &Group) -> Option<&str> {
    let hosts = group.heard().map(|s| host_of(&s.at)).filter(|host| !is_local(host));
    let hosts: BTreeSet<&str> = hosts.collect();
    hosts.first().copied().filter(|_| hosts.len() == 1)
}

/// Returns true for a loopback address, an unspecified address or a socket's path.
pub(super) fn is_local(host: &str) -> bool {
    let own = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    host.parse().map_or(host == "localhost" || host.contains('/'), own)
}

/// Without the brackets of an IPv6 address.
pub(super) fn parts(at: &str) -> (&str, &str) {
    (host_of(at), at.rsplit_once(':').map_or("6379", |(_, port)| port))
}

/// It then announces port 0, and its replicas and Sentinels do not reach it.
pub(super) fn lacks_tls_replication(server: &Server) -> bool {
    let is = |name, value| server.setting(name) == Ok(value);
    server.tls && is("port", "0") && is("tls-replication", "no")
}

pub(super) fn tls_replication(group: &Group) -> Vec<String> {
    let odd = group.servers.iter().filter(|s| lacks_tls_replication(s));
    odd.flat_map(|s| s.set("tls-replication", "yes")).collect()
}

/// Why an address has port 0, for findings.
pub(super) const PORT_0: &str = "port 0 is announced by a server or Sentinel that listens by TLS \
                                 only and lacks `tls-replication yes`";

/// After the commands.
pub(super) fn max_lag(group: &Group, now: Option<Duration>) -> u64 {
    let longest = ADVISED_LAG.min(group.rule.max_lag);
    now.filter(|lag| !lag.is_zero()).unwrap_or(longest).min(longest).as_secs()
}
