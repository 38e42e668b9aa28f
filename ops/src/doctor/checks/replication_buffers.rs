//! Does a replica that was away for a moment need a full copy?

use super::super::facts::{Facts, Server};
use super::super::report::{Finding, Severity};
use super::Check;

/// Smallest backlog in bytes that is not reported.
const BACKLOG: u64 = 16 << 20;
/// Smallest hard limit in bytes for what waits for a replica.
const BUFFER: u64 = 64 << 20;

/// Small buffers on the way to replicas.
pub(super) const CHECK: Check = Check {
    id: "replication-buffers",
    severity: Severity::Info,
    title: "a replica that was away for a moment needs no full copy",
    why: "with a backlog of 1 MB (the default) a replica that was away for seconds needs a full \
          copy; with a small output buffer it is cut off again and again; until it is back the \
          min-replicas check refuses writes (NOREPLICAS)",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for group in &facts.groups {
        let reached = group.servers.iter().filter(|s| s.reached.is_ok());
        found.extend(reached.map(|s| judge(&group.name, s)));
    }
    found
}

fn judge(name: &str, server: &Server) -> Finding {
    let subject = format!("{name} {}", server.at);
    let sizes = server.number("repl-backlog-size").and_then(|size| {
        let limits = server.setting("client-output-buffer-limit")?;
        Ok((size, limits))
    });
    let (size, limits) = match sizes {
        Ok(both) => both,
        Err(why) => return Finding::unknown(subject, why),
    };
    let hard = hard_limit(limits);
    let shown = hard.map_or("unknown".to_owned(), |h| h.to_string());
    let read = format!("repl-backlog-size {size}; replica output buffer {shown}");
    let mut says = Vec::new();
    let mut mend = Vec::new();
    if size < BACKLOG {
        says.push(format!("the replication backlog holds {} KB", size / 1024));
        mend.extend(server.set("repl-backlog-size", "64mb"));
    }
    // 0 is no limit.
    if hard.is_some_and(|h| h > 0 && h < BUFFER) {
        says.push(format!("a replica is cut off when {} KB wait for it", hard.unwrap_or(0) / 1024));
        mend.extend(server.set("client-output-buffer-limit", "'replica 256mb 64mb 60'"));
    }
    if says.is_empty() {
        return Finding::fine(subject, read);
    }
    Finding::info(subject, says.join("; "), read).mend(mend)
}

/// `normal 0 0 0 slave 268435456 67108864 60 …`
fn hard_limit(limits: &str) -> Option<u64> {
    let mut words = limits.split_whitespace();
    words.find(|w| matches!(*w, "slave" | "replica"))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::super::report::Verdict;
    use super::super::tests::{broken, close_config, fine, set, unknown, with};

    #[test]
    fn small_buffers() {
        fine("replication-buffers");
        let found = broken("replication-buffers", |f| set(f, "repl-backlog-size", "1048576"));
        assert_eq!(found.verdict, Verdict::Info);
        assert!(found.mend[0].ends_with("CONFIG SET repl-backlog-size 64mb"), "{found:?}");
        let limit = |f: &mut super::Facts, hard: &str| {
            let limits = format!("normal 0 0 0 slave {hard} 0 0 pubsub 33554432 8388608 60");
            set(f, "client-output-buffer-limit", &limits);
        };
        let found = broken("replication-buffers", |f| limit(f, "1048576"));
        assert!(found.says.contains("cut off when 1024 KB"), "{found:?}");
        with("replication-buffers", |f| limit(f, "0"), |_| {});
        unknown("replication-buffers", close_config);
    }
}
