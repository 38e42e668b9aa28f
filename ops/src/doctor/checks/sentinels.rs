//! The doctor's checks of the Sentinels of a group.

use std::collections::BTreeMap;

use super::super::facts::{Facts, Fields, Group, Sentinel, Unread, flagged, majority, place};
use super::super::report::Finding;
use super::{Answer, Check, Run, wanted};

pub(super) const QUORUM: Check = Check {
    id: "quorum",
    why: "with quorum 1, one Sentinel that lost its network promoted a replica after 1.7 s while \
          the healthy master wrote on until 12.7 s; 2 095 confirmed writes lost (measured). A \
          failover needs a majority of all Sentinels ever known: two tolerate no loss, and four no \
          more losses than three",
    run: Run::Sentinels(quorum),
};

fn quorum(group: &Group, sentinel: &Sentinel) -> Answer {
    let (quorum, all) = (sentinel.counts()?.0, wanted::known(group, sentinel)?);
    let (size, seen) = (wanted::size(group), wanted::seen(group));
    let majority = size / 2 + 1;
    let evidence = format!("quorum {quorum} of {all} Sentinels");
    let (name, wanted) = (&group.name, wanted::quorum(group));
    let missing = usize::try_from(wanted::full_size(group) - size).unwrap_or(1);
    let one = wanted::new_sentinel(group);
    let boxes = ["on another box", "and on one more"].into_iter().take(missing);
    let also = wanted::also_needed(group);
    let add = boxes.map(|place| format!("{one}    # {place}{also}"));
    let set = sentinel.by_hand(&format!("SENTINEL SET {name} quorum {wanted}"));
    let fits = (wanted::full_size(group) / 2 + 1..=size.max(wanted)).contains(&quorum);
    let fix = add.chain((!fits).then_some(set));
    Ok(if all < seen {
        // Its own number is no ground for another quorum: it grows by itself.
        let message = format!(
            "it knows {} of the {} other Sentinels: they find each other through the master within \
             ten seconds; if that lasts, look for its link to the master",
            all - 1,
            seen - 1
        );
        let look = sentinel.by_hand(&format!("SENTINEL CKQUORUM {name}    # after ten seconds"));
        Finding::error(message, evidence).fix([look]).fix(fix)
    } else if quorum > size {
        let message = format!("the quorum is {quorum}, and there are fewer Sentinels");
        Finding::error(format!("{message}: no failover can begin"), evidence).fix(fix)
    } else if quorum < majority {
        let message = format!("{quorum} Sentinels can declare the master down; a majority");
        Finding::error(format!("{message} is {majority}"), evidence).fix(fix)
    } else if size < 3 {
        let message = "no failover is possible after the loss of one Sentinel or its network";
        Finding::error(message, evidence).fix(fix)
    } else if size % 2 == 0 {
        let message = format!("{size} Sentinels tolerate no more losses than {} do", size - 1);
        Finding::warning(message, evidence).fix(fix)
    } else {
        Finding::fine(evidence)
    })
}

pub(super) const DISAGREEMENT: Check = Check {
    id: "sentinel-disagreement",
    why: "a Sentinel on the minority side keeps naming the old master and reports no problem; only \
          CKQUORUM shows that no failover is possible (observed); and a Sentinel never forgets \
          another one by itself: each that is gone for good raises the majority that is needed",
    run: Run::All(disagreement),
};

/// The master's address is compared separately.
const ALIKE: &[&str] =
    &["config-epoch", "quorum", "down-after-milliseconds", "num-other-sentinels"];

fn disagreement(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for group in &facts.groups {
        let each = group.heard().map(|s| (s, alone(group, s)));
        let named = |(s, answer): (&Sentinel, Answer)| {
            answer.unwrap_or_else(Finding::unknown).on(s.subject(group))
        };
        found.extend(each.map(named));
        let tilted = group.heard().filter_map(|s| Some(in_tilt(s)?.on(s.subject(group))));
        found.extend(tilted);
        let differences = differences(group);
        if differences.is_empty() && group.heard().count() > 1 {
            let evidence = format!("all name one master, and agree on {}", ALIKE.join(", "));
            found.push(Finding::fine(evidence).on(&group.name));
        }
        found.extend(differences.into_iter().map(|f| f.on(&group.name)));
    }
    found
}

fn alone(group: &Group, sentinel: &Sentinel) -> Answer {
    if let Err(Unread::Failed(why)) = &sentinel.master {
        let fix = wanted::monitor(group, sentinel);
        return Ok(Finding::error("it does not monitor this group", why).fix(fix));
    }
    if let Err(Unread::Closed(why)) = &sentinel.master {
        // quarantine 16
        let message = "its user may not read in which epoch the master is named: a program without \
                       that right beside one with it costs a second quarantine after each \
                       failover; allow `+sentinel|master` to the users of all programs \
                       (users-sentinel.acl in sentinel-conf)";
        return Ok(Finding::warning(message, why).fix([sentinel.by_hand("ACL LOG 5")]));
    }
    let odd: Vec<&str> = wanted::without_port(sentinel)
        .filter_map(|other| Some(other.get("ip")?.as_str()))
        .collect();
    if !odd.is_empty() {
        let message = format!(
            "it counts Sentinels at port 0, which nobody reaches, so more of the others have to \
             agree: {}; mend that in their sentinel.conf, then have it forget them (one Sentinel \
             after the other, half a minute apart, while the master is well)",
            wanted::PORT_0
        );
        let reset = sentinel.by_hand(&format!("SENTINEL RESET {}", group.name));
        return Ok(Finding::error(message, format!("port 0 at {}", odd.join(", "))).fix([reset]));
    }
    let others = sentinel.others.iter().flatten();
    let lost = others.filter(|o| flagged(o, "s_down") || flagged(o, "disconnected"));
    let lost: Vec<String> = lost.filter_map(place).collect();
    let known = group.sentinels.iter().filter(|s| lost.contains(&s.at));
    let ping: Vec<String> = known.map(|s| s.by_hand("PING")).collect();
    let said = sentinel.quorum.as_ref();
    Ok(
        if let Ok(said) = said.as_ref().map(|said| said.as_str())
            && !said.starts_with("OK")
        {
            let check = sentinel.by_hand(&format!("SENTINEL CKQUORUM {}", group.name));
            let message = "it reports that no failover is possible";
            Finding::error(message, said).fix(ping).fix([check])
        } else if !lost.is_empty() {
            let evidence = format!("down or disconnected: {}", lost.join(", "));
            let message = "it does not reach other Sentinels; remove those that are gone \
                           for good (one Sentinel after the other, half a minute apart, while the \
                           master is well)";
            let reset = sentinel.by_hand(&format!("SENTINEL RESET {}", group.name));
            Finding::error(message, evidence).fix(ping).fix([reset])
        } else {
            Finding::fine(said?)
        },
    )
}

fn in_tilt(sentinel: &Sentinel) -> Option<Finding> {
    let message = "it is in tilt: its clock jumped or it stood still, so for half a minute it \
                   reports nothing and begins no failover, not even `palisade handover`'s";
    let look = sentinel.by_hand("INFO sentinel    # after half a minute");
    let finding = || Finding::warning(message, "sentinel_tilt:1").fix([look]);
    (sentinel.tilt == Ok(true)).then(finding)
}

fn differences(group: &Group) -> Vec<Finding> {
    let mut found = Vec::new();
    let name = &group.name;
    let check = format!("SENTINEL CKQUORUM {name}");
    if let Some((usual, evidence, odd)) = votes(group, Sentinel::master_at) {
        let message = "the Sentinels name different masters; if that lasts for more than a minute, \
                       remove the group on the odd ones and monitor it again";
        // Of two that differ nobody knows which one is odd.
        let named = group.heard().filter(|s| s.master_at().as_ref() == Some(&usual)).count();
        let sure = named >= majority(&group.sentinels) && group.master_at() == Some(usual);
        let fix = odd.iter().filter(|_| sure).flat_map(|s| {
            let monitor = wanted::monitor(group, s);
            let remove = || s.by_hand(&format!("SENTINEL REMOVE {name}"));
            (!monitor.is_empty()).then(remove).into_iter().chain(monitor)
        });
        let look = odd.iter().map(|s| s.by_hand(&check));
        let finding = Finding::error(message, format!("master {evidence}"));
        found.push(finding.fix(fix).or_look(look));
    }
    for field in ALIKE {
        let of = |s: &Sentinel| Some(s.number(field)?.to_string());
        let Some((_, evidence, odd)) = votes(group, of) else { continue };
        let fix: Vec<String> = match *field {
            "quorum" => {
                let quorum = wanted::quorum(group);
                let is_odd = |s: &&Sentinel| s.number(field).is_some_and(|q| q != quorum);
                let odd = group.heard().filter(is_odd);
                odd.map(|s| s.by_hand(&format!("SENTINEL SET {name} quorum {quorum}"))).collect()
            }
            "down-after-milliseconds" => wanted::set_down_after(group),
            // Those that count Sentinels that are gone forget them. The others only have to wait.
            "num-other-sentinels" => {
                let size = wanted::size(group);
                let odd =
                    group.heard().filter(|s| wanted::known(group, s).is_ok_and(|all| all > size));
                odd.map(|s| s.by_hand(&format!("SENTINEL RESET {name}"))).collect()
            }
            // The Sentinel that is odd leads the failover. A reset makes it forget which replica it
            // promotes and keep the epoch, so it names the old master in the new epoch.
            _ if is_failing_over(group) => Vec::new(),
            // Sentinels exchange their epochs through the master, and `SENTINEL RESET` starts that
            // again.
            _ => odd.iter().map(|s| s.by_hand(&format!("SENTINEL RESET {name}"))).collect(),
        };
        let message = format!("the Sentinels differ in {field}");
        let look = odd.iter().map(|s| s.by_hand(&check));
        let finding = Finding::error(message, format!("{field} {evidence}"));
        found.push(finding.fix(fix).or_look(look));
    }
    found
}

fn is_failing_over(group: &Group) -> bool {
    let flags = |s: &Sentinel| s.master.as_ref().ok()?.get("flags").cloned();
    group.heard().filter_map(flags).any(|flags| flags.contains("failover_in_progress"))
}

/// Returns the most common value of a field, the text that lists every value with its Sentinels,
/// and the Sentinels that report another value. Returns `None` if all Sentinels agree.
fn votes(
    group: &Group,
    of: impl Fn(&Sentinel) -> Option<String>,
) -> Option<(String, String, Vec<&Sentinel>)> {
    let mut values: BTreeMap<String, Vec<&Sentinel>> = BTreeMap::new();
    for sentinel in group.heard() {
        if let Some(value) = of(sentinel) {
            values.entry(value).or_default().push(sentinel);
        }
    }
    let usual = values.iter().max_by_key(|(_, by)| by.len()).map(|(value, _)| value.clone())?;
    let each = values.iter().map(|(value, by)| {
        let by: Vec<_> = by.iter().map(|s| s.at.as_str()).collect();
        format!("{value} at {}", by.join(" and "))
    });
    let evidence = each.collect::<Vec<_>>().join("; ");
    values.remove(&usual);
    let odd: Vec<_> = values.into_values().flatten().collect();
    (!odd.is_empty()).then_some((usual, evidence, odd))
}

pub(super) const SIGHT: Check = Check {
    id: "sentinel-sight",
    why: "a Sentinel that cannot log in at a server (no auth-pass, a user without rights) treats \
          it as down for ever: such a replica is never promoted, and such a master is replaced \
          while it works",
    run: Run::Sentinels(sight),
};

/// In milliseconds. A Sentinel sends `INFO` every ten seconds.
const STALE: u64 = 30_000;

fn sight(group: &Group, sentinel: &Sentinel) -> Answer {
    let (master, replicas) = (sentinel.master.as_ref()?, sentinel.replicas.as_ref()?);
    let is_blind = |seen: &&Fields| {
        let age = seen.get("info-refresh").and_then(|ms| ms.parse::<u64>().ok());
        flagged(seen, "s_down") || flagged(seen, "disconnected") || age.is_some_and(|ms| ms > STALE)
    };
    let blind = std::iter::once(master).chain(replicas).filter(is_blind).filter_map(place);
    let blind: Vec<&str> = group
        .reached()
        .map(|server| server.at.as_str())
        .filter(|at| blind.clone().any(|seen| seen == *at))
        .collect();
    let Some(first) = blind.first() else {
        return Ok(Finding::fine(format!("{} servers", replicas.len() + 1)));
    };
    let message = "these servers answer the doctor, but this Sentinel treats them as down or \
                   cannot log in";
    let set = |option: &str| sentinel.by_hand(&format!("SENTINEL SET {} {option}", group.name));
    let with_tls = group.servers.iter().any(|s| s.tls);
    let message = if with_tls {
        format!("{message}; for servers by TLS its sentinel.conf needs `tls-replication yes`")
    } else {
        message.to_owned()
    };
    let log = group.servers.iter().find(|s| s.at == *first).map(|s| s.by_hand("ACL LOG 5"));
    let fix = [
        log.unwrap_or_default(),
        set(&format!("auth-user {}", wanted::USER)),
        set(&format!("auth-pass {}", wanted::PASSWORD)),
    ];
    Ok(Finding::error(format!("{message}: {}", blind.join(", ")), blind.join(", ")).fix(fix))
}

pub(super) const TIMES: Check = Check {
    id: "sentinel-times",
    why: "with down-after below 2 s a master that pauses for a second is replaced (1 s: promoted \
          1.5 s after the cut, measured); after a split vote, or if the chosen replica dies, \
          Sentinel waits twice failover-timeout before it tries again: six minutes without a \
          master with the default of 180 s",
    run: Run::Sentinels(times),
};

fn times(group: &Group, sentinel: &Sentinel) -> Answer {
    sentinel.master.as_ref()?;
    let number = |name| sentinel.number(name).ok_or_else(|| format!("the Sentinel sent no {name}"));
    let (down_after, timeout) = (number("down-after-milliseconds")?, number("failover-timeout")?);
    let evidence = format!("down-after-milliseconds {down_after}; failover-timeout {timeout}");
    let set = |setting: &str| [sentinel.by_hand(&format!("SENTINEL SET {} {setting}", group.name))];
    let advised = wanted::down_after(group);
    let short = (down_after < wanted::DOWN_AFTER_MIN)
        .then(|| set(&format!("down-after-milliseconds {advised}")));
    let long = (timeout > wanted::TIMEOUT_MAX).then(|| set("failover-timeout 15000"));
    let message = if short.is_some() {
        "a short pause of the server is enough for a failover".to_owned()
    } else if long.is_some() {
        let again = timeout.saturating_mul(2) / 1_000;
        format!("a stuck failover of {} is tried again after {again} s", group.name)
    } else {
        return Ok(Finding::fine(evidence));
    };
    let fix = short.into_iter().chain(long).flatten();
    Ok(Finding::warning(message, evidence).fix(fix))
}

#[cfg(test)]
mod tests;
