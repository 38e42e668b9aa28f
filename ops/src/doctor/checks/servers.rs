//! The doctor's checks of a single data server.

use std::collections::BTreeSet;

use super::super::facts::{Facts, Outcome, REPLAYED, Server};
use super::super::report::Finding;
use super::{Answer, Check, Run};
use palisade::error::NodeFault;
use palisade::internal::objection;

pub(super) const UNREACHABLE: Check = Check {
    id: "unreachable",
    why: "a server that does not answer neither votes nor takes over, and no other check could \
          examine it",
    run: Run::All(unreachable),
};

const LISTED: usize = 16;

fn unreachable(facts: &Facts) -> Vec<Finding> {
    let one = |reached: &Result<(), String>, given: bool, ping: String| match reached {
        Ok(()) => Finding::fine("connected and logged in"),
        Err(why) => {
            let by = if given { "you" } else { "a Sentinel" };
            Finding::error(format!("cannot be reached; named by {by}"), why).fix([ping])
        }
    };
    let mut found = Vec::new();
    for group in &facts.groups {
        let sentinels = group.sentinels.iter();
        found.extend(
            sentinels.map(|s| one(&s.reached, s.given, s.by_hand("PING")).on(s.subject(group))),
        );
        if !group.skipped.is_empty() {
            let some: Vec<&str> = group.skipped.iter().map(String::as_str).take(LISTED).collect();
            let more = group.skipped.len() - some.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let why = format!(
                "not examined, because no majority of the Sentinels names them, or too many are \
                 named: {}{more}",
                some.join(", ")
            );
            found.push(Finding::unknown(why).on(&group.name));
        }
        if group.servers.is_empty() && group.skipped.is_empty() && group.heard().next().is_some() {
            let message = format!("no Sentinel names a master for {:?}", group.name);
            let ask = group.heard().map(|s| s.by_hand("SENTINEL MASTERS"));
            let unread = group.heard().find_map(|s| Some((&s.at, s.master.as_ref().err()?)));
            let evidence = unread
                .map_or("SENTINEL MASTER".to_owned(), |(at, why)| format!("Sentinel {at}: {why}"));
            found.push(Finding::error(message, evidence).fix(ask).on(&group.name));
        }
    }
    let servers = facts.servers();
    found.extend(servers.map(|(of, s)| one(&s.reached, s.given, s.by_hand("PING")).on(of)));
    found
}

/// By the same function as the library.
pub(super) const REFUSED: Check = Check {
    id: "refused",
    why: "such a server does not vote: clients refuse it when they connect, also after it was \
          promoted",
    run: Run::Servers(refused),
};

fn refused(_: &Facts, server: &Server) -> Answer {
    let known = |name| server.info(name).unwrap_or("unknown");
    let evidence = format!(
        "redis_version:{}; maxmemory_policy:{}",
        known("redis_version"),
        known("maxmemory_policy")
    );
    let info = server.info_text()?;
    Ok(match objection(&info, server.allows_eviction) {
        None if objection(&info, false).is_some() => {
            let message = "it may delete locks and keys when its memory is full; the settings \
                           accept that (`allow_eviction`)";
            Finding::warning(message, evidence)
        }
        None => Finding::fine(evidence),
        Some(e) if e.fault() == NodeFault::Eviction => {
            Finding::error(e.detail(), evidence).fix(server.set("maxmemory-policy", "noeviction"))
        }
        Some(e) => Finding::error(e.detail(), evidence).fix([server.by_hand("INFO server")]),
    })
}

pub(super) const TRIAL: Check =
    Check { id: "trial", why: "the application does the same", run: Run::All(trial) };

fn trial(facts: &Facts) -> Vec<Finding> {
    let judge = |outcome: &Outcome| match outcome {
        Outcome::Granted { granted, released } => {
            Finding::fine(format!("granted in {granted:.1?}, released in {released:.1?}"))
        }
        Outcome::NotReleased(why) => {
            Finding::warning("granted, but the release was not confirmed", why)
        }
        Outcome::Quarantined(left) => {
            let message = "it grants nothing yet: it was restarted, promoted or lost its data, or \
                           is used for the first time; this ends by itself";
            Finding::warning(message, format!("{:.1} s are left", left.as_secs_f64()))
        }
        Outcome::Refused { why, misconfigured: true } => {
            Finding::error("no lock is granted until a setting is changed", why)
        }
        Outcome::Refused { why, misconfigured: false } => Finding::error("no lock is granted", why),
    };
    facts.trials.iter().map(|trial| judge(&trial.outcome).on(&trial.subject)).collect()
}

pub(super) const PERSISTENCE: Check = Check {
    id: "persistence",
    why: "a master that comes back empty, faster than down-after, is copied by its replicas: every \
          lock and result is lost on all of them, and no Sentinel event reports it; with \
          appendfsync no, a power loss destroys about thirty seconds of writes",
    run: Run::Servers(persistence),
};

fn persistence(_: &Facts, server: &Server) -> Answer {
    let ok = |name| server.info(name).is_ok_and(|status| status != "ok");
    let disk = || vec![format!("df -h    # on the box of {}", server.at)];
    if server.info("aof_enabled")? == "1" {
        let sync = server.setting("appendfsync");
        let evidence =
            format!("aof_enabled:1; appendfsync {}", sync.as_deref().unwrap_or("unknown"));
        let is_late = sync.as_deref() == Ok("no");
        let often = is_late.then(|| server.set("appendfsync", "everysec")).into_iter().flatten();
        return Ok(if ok("aof_last_write_status") {
            let message = "the append-only file cannot be written: this server takes no writes";
            Finding::error(message, evidence).fix(disk())
        } else if ok("aof_last_bgrewrite_status") {
            let message = "the append-only file could not be rewritten: it grows until the disk is \
                           full";
            let rewrite = server.by_hand("BGREWRITEAOF");
            Finding::warning(message, evidence).fix(disk()).fix([rewrite]).fix(often)
        } else if sync? == "no" {
            let message = "the kernel decides when grants and results reach the disk";
            Finding::warning(message, evidence).fix(often)
        } else {
            Finding::fine(evidence)
        });
    }
    let points = server.setting("save")?;
    let evidence = format!("aof_enabled:0; save {points:?}");
    // A file that is replayed without rights, or reaches the disk late, is the next fault.
    let sync = server.setting("appendfsync") == Ok("no");
    let sync = sync.then(|| server.set("appendfsync", "everysec")).into_iter().flatten();
    let rights = matches!(server.replays, Ok(Some(_))).then(|| rights_to_replay(server));
    let append = rights.into_iter().flatten().chain(server.set("appendonly", "yes")).chain(sync);
    Ok(if points.is_empty() {
        Finding::error("it keeps nothing on disk: a restart empties it", evidence).fix(append)
    } else if ok("rdb_last_bgsave_status") {
        let message = "the last snapshot failed; without `stop-writes-on-bgsave-error no` this \
                       server takes no writes, and its last good snapshot gets older";
        Finding::error(message, evidence).fix(disk()).fix(append)
    } else {
        let message = "only snapshots: a crash loses every grant and result since the last one";
        Finding::warning(message, evidence).fix(append)
    })
}

/// A server replays its append-only file with the rights of `default`.
pub(super) const AOF_REPLAY: Check = Check {
    id: "aof-replay",
    why: "Redis up to 8.2 at least, and Valkey before 9.1, replay the file with the rights of the \
          user `default` and silently skip transactions that this user may not run; a script's \
          writes are a transaction, so every lock and every result is lost",
    run: Run::Servers(aof_replay),
};

fn aof_replay(_: &Facts, server: &Server) -> Answer {
    if server.info("aof_enabled")? != "1" {
        return Ok(Finding::fine("aof_enabled:0"));
    }
    let version = server.info("valkey_version").unwrap_or_default();
    let mut parts = version.split('.').map_while(|n| n.parse::<u32>().ok());
    if (parts.next(), parts.next()) >= (Some(9), Some(1)) {
        return Ok(Finding::fine("Valkey 9.1 or newer"));
    }
    let Some(why) = server.replays.as_ref()? else {
        return Ok(Finding::fine(format!("default may {REPLAYED}")));
    };
    let message = "a restart loses every lock and every result: the append-only file is replayed \
                   as the user `default`, which may not write; give that user the rights (it can \
                   stay `off`)";
    Ok(Finding::error(message, format!("aof_enabled:1; {why}")).fix(rights_to_replay(server)))
}

fn rights_to_replay(server: &Server) -> [String; 2] {
    [
        server.by_hand("ACL SETUSER default '+@all' '~*' '&*'"),
        server.by_hand("ACL SAVE    # or CONFIG REWRITE, where no aclfile is set"),
    ]
}

pub(super) const PERMISSIONS: Check = Check {
    id: "permissions",
    why: "a node on which one command of a script is refused grants nothing, or grants and cannot \
          release; a replica with fewer rights fails that way after a failover",
    run: Run::Servers(permissions),
};

/// Without `PUBLISH` and `SUBSCRIBE`, waiting clients poll; without `WAIT`, no durability level
/// above `Primary` is possible.
const SPARED: [&str; 3] = ["PUBLISH", "SUBSCRIBE", "WAIT"];

fn permissions(_: &Facts, server: &Server) -> Answer {
    let (user, may) = (server.user.as_ref()?, server.may.as_ref()?);
    let refused = || may.iter().filter_map(|(command, why)| Some((&**command, why.as_deref()?)));
    let names: Vec<String> = refused().map(|(command, _)| operation(command)).collect();
    if names.is_empty() {
        return Ok(Finding::fine(format!("{user} may send all {} commands", may.len())));
    }
    let rules: BTreeSet<String> = refused().map(|(command, why)| rule(command, why)).collect();
    let rules: Vec<String> = rules.into_iter().collect();
    let fix = [
        server.by_hand(&format!("ACL SETUSER {user} {}", rules.join(" "))),
        // Which of the two saves the users depends on where they are.
        format!("{} || {}", server.by_hand("CONFIG REWRITE"), server.by_hand("ACL SAVE")),
    ];
    let evidence = refused().map(|(_, why)| why.to_owned()).collect::<Vec<_>>().join("; ");
    let message = format!("{user} may not send {}", names.join(", "));
    Ok(if names.iter().all(|name| SPARED.contains(&&**name)) {
        let costs = "waiters poll without PUBLISH and SUBSCRIBE, and without WAIT no durability \
                     above `Primary` is possible";
        Finding::warning(format!("{message}: {costs}"), evidence).fix(fix)
    } else {
        Finding::error(message, evidence).fix(fix)
    })
}

/// `SCRIPT LOAD x` → `SCRIPT LOAD`, `GET k` → `GET`.
fn operation(command: &str) -> String {
    let words = if command.starts_with("SCRIPT ") { 2 } else { 1 };
    command.split(' ').take(words).collect::<Vec<_>>().join(" ")
}

/// For a channel, for keys or for the command.
pub(in super::super) fn rule(command: &str, why: &str) -> String {
    if why.contains("channel") {
        "'&palisade:changed*'".to_owned()
    } else if why.contains("key") && !why.contains("run the") {
        "'~*'".to_owned()
    } else {
        format!("+{}", operation(command).to_ascii_lowercase().replace(' ', "|"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::facts::{COMMANDS, Unread};
    use super::super::super::report::Verdict;
    use super::super::tests::{broken, close_config, fine, info_on, set, set_on, unknown};
    use super::*;

    fn denied(facts: &mut Facts) {
        facts.groups[0].servers[0].replays = Ok(Some("no permissions to run 'set'".into()));
    }

    #[test]
    fn a_user_default_without_rights_loses_what_scripts_wrote() {
        fine("aof-replay");
        let found = broken("aof-replay", denied);
        assert_eq!((found.verdict, &*found.subject), (Verdict::Error, "orders-a 10.0.0.1:6379"));
        assert!(found.fix[0].contains("ACL SETUSER default"), "{found:?}");
        unknown("aof-replay", |f| {
            f.groups[0].servers[0].replays =
                Err(Unread::Closed("ACL DRYRUN is not allowed".into()));
        });
    }

    #[test]
    fn a_server_that_asks_for_no_rights_is_fine() {
        let of = |version: &str, on: &str| {
            let mut facts = super::super::tests::good();
            denied(&mut facts);
            info_on(&mut facts.groups[0].servers[0], "valkey_version", version);
            info_on(&mut facts.groups[0].servers[0], "aof_enabled", on);
            aof_replay(&facts, &facts.groups[0].servers[0]).expect("it is known").verdict
        };
        assert_eq!(of("9.0.4", "1"), Verdict::Error);
        assert_eq!(of("9.1.2", "1"), Verdict::Fine);
        assert_eq!(of("", "0"), Verdict::Fine);
    }

    fn off(facts: &mut Facts) {
        for server in &mut facts.groups[0].servers {
            info_on(server, "aof_enabled", "0");
        }
    }

    #[test]
    fn nothing_on_disk() {
        fine("persistence");
        let found = broken("persistence", off);
        assert_eq!((found.verdict, &*found.subject), (Verdict::Error, "orders-a 10.0.0.1:6379"));
        assert_eq!(found.fix[0], "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET appendonly yes");
        let found = unknown("persistence", |f| {
            off(f);
            close_config(f);
        });
        assert!(found.message.contains("CONFIG not allowed"), "{found:?}");
    }

    #[test]
    fn a_file_left_to_the_kernel() {
        let found = broken("persistence", |f| {
            set_on(&mut f.groups[0].servers[1], "appendfsync", "no");
        });
        assert_eq!((found.verdict, &*found.subject), (Verdict::Warning, "orders-a 10.0.0.2:6379"));
        assert!(found.fix[0].ends_with("CONFIG SET appendfsync everysec"), "{found:?}");
    }

    #[test]
    fn snapshots_alone() {
        let snapshots = |f: &mut Facts| {
            off(f);
            set(f, "save", "3600 1 300 100");
        };
        assert_eq!(broken("persistence", snapshots).verdict, Verdict::Warning);
        let found = broken("persistence", |f| {
            snapshots(f);
            info_on(&mut f.groups[0].servers[0], "rdb_last_bgsave_status", "err");
        });
        assert_eq!(found.verdict, Verdict::Error);
        assert!(found.message.contains("last snapshot failed"), "{found:?}");
    }

    #[test]
    fn a_disk_that_takes_no_more() {
        for (name, verdict) in [
            ("aof_last_write_status", Verdict::Error),
            ("aof_last_bgrewrite_status", Verdict::Warning),
        ] {
            let found = broken("persistence", |f| {
                info_on(&mut f.groups[0].servers[2], name, "err");
            });
            assert_eq!((found.verdict, &*found.subject), (verdict, "orders-a 10.0.0.3:6379"));
            assert!(found.fix[0].starts_with("df -h "), "{found:?}");
        }
    }

    fn refuse(facts: &mut Facts, begin: &str, why: &str) {
        let Ok(all) = &mut facts.groups[0].servers[1].may else { unreachable!() };
        for (command, refusal) in all.iter_mut().filter(|(c, _)| c.starts_with(begin)) {
            *refusal = Some(format!("This user has no permissions to {why} for {command}"));
        }
    }

    #[test]
    fn a_missing_right_is_reported_with_the_acl_rule() {
        fine("permissions");
        let reported = |begin, why: &str| broken("permissions", |f| refuse(f, begin, why));
        let found = reported("SCRIPT LOAD", "run the 'script|load' command");
        assert_eq!(found.subject, "orders-a 10.0.0.2:6379");
        let to = "redis-cli -h 10.0.0.2 -p 6379";
        assert_eq!(found.fix[0], format!("{to} ACL SETUSER default +script|load"));
        let found = reported("SET ", "access the 'palisade:doctor' key");
        assert!(found.fix[0].ends_with("default '~*'"), "{found:?}");
        let found = reported("SUBSCRIBE", "access the 'palisade:changed' channel");
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.fix[0].ends_with("default '&palisade:changed*'"), "{found:?}");
        let found = reported("WAIT", "run the 'wait' command");
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.message.ends_with("above `Primary` is possible"), "{found:?}");
        let closed = |f: &mut Facts| {
            f.groups[0].servers[2].may = Err(Unread::Closed("ACL DRYRUN not allowed".into()));
        };
        assert!(unknown("permissions", closed).message.contains("ACL DRYRUN not allowed"));
    }

    /// Checks that the ACL profile in the manual allows exactly the commands in `COMMANDS`.
    #[test]
    fn the_minimal_profile_is_what_is_tried() {
        let page = include_str!("../../../../src/manual/deployment.md");
        let profile = page.split("ACL SETUSER palisade").nth(1).expect("the profile");
        let profile = profile.split("```").next().expect("its end");
        let reported = profile.split_whitespace().filter_map(|w| w.strip_prefix('+'));
        let reported: BTreeSet<String> = reported.map(str::to_owned).collect();
        let tried = COMMANDS.iter().map(|c| rule(c, "").trim_start_matches('+').to_owned());
        assert_eq!(tried.collect::<BTreeSet<_>>(), reported);
    }

    #[test]
    fn each_outcome_is_reported_as_what_it_is() {
        fine("trial");
        let with = |outcome| broken("trial", |f| f.trials[0].outcome = outcome);
        let found = with(Outcome::Quarantined(Duration::from_millis(12_340)));
        assert_eq!((found.verdict, found.evidence.as_str()), (Verdict::Warning, "12.3 s are left"));
        let refused =
            |misconfigured| with(Outcome::Refused { why: "check absent".into(), misconfigured });
        assert_eq!(refused(true).verdict, Verdict::Error);
        assert!(refused(true).message.contains("setting"));
        assert_eq!(refused(false).evidence, "check absent");
        let found = with(Outcome::NotReleased("the lease had run out".into()));
        assert_eq!(found.verdict, Verdict::Warning);
    }

    #[test]
    fn an_unreachable_server_is_reported_with_its_cause() {
        fine("unreachable");
        let found = broken("unreachable", |facts| {
            facts.groups[0].servers[1].reached = Err("connection refused".into());
        });
        assert_eq!(found.subject, "orders-a 10.0.0.2:6379");
        assert_eq!(found.evidence, "connection refused");
        assert_eq!(found.fix, ["redis-cli -h 10.0.0.2 -p 6379 PING"]);
        let found = broken("unreachable", |facts| {
            facts.groups[0].sentinels[2].reached = Err("no answer before the deadline".into());
        });
        assert_eq!(found.subject, "orders-a Sentinel 10.0.0.3:26379");
        let found = broken("unreachable", |facts| facts.groups[0].servers.clear());
        assert!(found.message.contains("no Sentinel names a master"), "{found:?}");
    }

    #[test]
    fn what_the_library_refuses_is_refused_here() {
        fine("refused");
        let evicts = |f: &mut Facts| {
            info_on(&mut f.groups[0].servers[2], "maxmemory_policy", "allkeys-lru");
            info_on(&mut f.groups[0].servers[2], "maxmemory", "104857600");
        };
        let found = broken("refused", evicts);
        assert_eq!((found.verdict, &*found.subject), (Verdict::Error, "orders-a 10.0.0.3:6379"));
        assert!(found.fix[0].ends_with("CONFIG SET maxmemory-policy noeviction"), "{found:?}");
        // A user may allow a server to evict keys.
        let found = broken("refused", |f| {
            evicts(f);
            f.groups[0].servers[2].allows_eviction = true;
        });
        assert_eq!((found.verdict, &*found.subject), (Verdict::Warning, "orders-a 10.0.0.3:6379"));
        for (name, value) in [("redis_version", "6.0.16"), ("redis_mode", "cluster")] {
            let found = broken("refused", |f| info_on(&mut f.groups[0].servers[0], name, value));
            assert!(found.fix[0].ends_with("INFO server"), "{found:?}");
        }
    }
}
