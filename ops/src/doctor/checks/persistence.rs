//! Does a server keep its grants and results over a restart?

use super::super::facts::{Facts, Server};
use super::super::report::{Finding, Severity};
use super::Check;

/// No persistence, only snapshots, or a disk that refuses writes.
pub(super) const CHECK: Check = Check {
    id: "persistence",
    severity: Severity::Error,
    title: "grants and results survive a restart of the server",
    why: "a master that comes back empty, faster than down-after, is copied by its replicas: every \
          lock and result is lost on all of them, and no Sentinel event reports it",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.servers().filter(|(_, s)| s.reached.is_ok()).map(|(name, s)| judge(name, s)).collect()
}

fn judge(name: &str, server: &Server) -> Finding {
    let subject = format!("{name} {}", server.at);
    let append_only = match server.info("aof_enabled") {
        Ok(on) => on == "1",
        Err(why) => return Finding::unknown(subject, why),
    };
    // `systemd`, `upstart`, `unknown` or `no`; other supervisors cannot be seen.
    let supervisor = server.info("process_supervised").unwrap_or("no");
    if append_only {
        return appending(subject, server);
    }
    let points = match server.setting("save") {
        Ok(points) => points,
        Err(why) => {
            let why = format!("appendonly is off; whether it takes snapshots is unknown: {why}");
            return Finding::unknown(subject, why);
        }
    };
    let read = format!("aof_enabled:0; save {points:?}; process_supervised:{supervisor}");
    let mend = server.set("appendonly", "yes");
    if points.is_empty() {
        let soon = match supervisor {
            "no" => "",
            _ => ", and its supervisor restarts it at once",
        };
        let says = format!("it keeps nothing on disk{soon}: a restart empties it");
        return Finding::error(subject, says, read).mend(mend);
    }
    if server.info("rdb_last_bgsave_status").is_ok_and(|last| last != "ok") {
        let says = "the last snapshot failed; without `stop-writes-on-bgsave-error no` this server \
                    takes no writes, and its last good snapshot gets older";
        let look = look_at_disk(server);
        let read = format!("{read}; rdb_last_bgsave_status:err");
        return Finding::error(subject, says, read)
            .mend([look, server.by_hand("BGSAVE")])
            .mend(mend);
    }
    let says = "only snapshots: a crash loses every grant and result since the last one";
    Finding::warning(subject, says, read).mend(mend)
}

/// For the server's box. A directory name that would need quoting is left out.
fn look_at_disk(server: &Server) -> String {
    let plain = |dir: &&str| dir.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
    let dir = server.setting("dir").ok().filter(plain).unwrap_or("<its directory>");
    format!("df -h {dir}; ls -ld {dir}    # on the box of {}", server.at)
}

fn appending(subject: String, server: &Server) -> Finding {
    let wrote = server.info("aof_last_write_status").unwrap_or("ok");
    let rewrote = server.info("aof_last_bgrewrite_status").unwrap_or("ok");
    let read = format!(
        "aof_enabled:1; aof_last_write_status:{wrote}; aof_last_bgrewrite_status:{rewrote}"
    );
    let look = look_at_disk(server);
    if wrote != "ok" {
        let says = "the append-only file cannot be written: this server takes no writes";
        return Finding::error(subject, says, read).mend([look]);
    }
    if rewrote != "ok" {
        let says = "the append-only file could not be rewritten: it grows until the disk is full";
        return Finding::warning(subject, says, read).mend([look, server.by_hand("BGREWRITEAOF")]);
    }
    Finding::fine(subject, read)
}

#[cfg(test)]
mod tests {
    use super::super::super::report::Verdict;
    use super::super::tests::{broken, close_config, fine, info_on, set, unknown};
    use super::*;

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
        assert_eq!(found.mend[0], "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET appendonly yes");
        let found = broken("persistence", |f| {
            off(f);
            info_on(&mut f.groups[0].servers[0], "process_supervised", "systemd");
        });
        assert!(found.says.contains("its supervisor restarts it at once"), "{found:?}");
        let found = unknown("persistence", |f| {
            off(f);
            close_config(f);
        });
        assert!(found.says.contains("CONFIG not allowed"), "{found:?}");
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
        assert!(found.says.contains("last snapshot failed"), "{found:?}");
    }

    #[test]
    fn a_disk_that_takes_no_more() {
        for (name, verdict) in [
            ("aof_last_write_status", Verdict::Error),
            ("aof_last_bgrewrite_status", Verdict::Warning),
        ] {
            let found = broken("persistence", |f| {
                info_on(&mut f.groups[0].servers[2], name, "err");
                set(f, "dir", "/var/lib/redis; reboot");
            });
            assert_eq!((found.verdict, &*found.subject), (verdict, "orders-a 10.0.0.3:6379"));
            assert!(found.mend[0].starts_with("df -h <its directory>"), "{found:?}");
        }
    }
}
