//! Can a server delete a held lock to free memory?

use super::super::facts::{Facts, Server};
use super::super::report::{Finding, Severity};
use super::Check;

/// Any policy but `noeviction`.
pub(super) const CHECK: Check = Check {
    id: "eviction",
    severity: Severity::Error,
    title: "no key is deleted to free memory",
    why: "a full server with any other policy deletes keys in use: another client gets the lock \
          while its holder goes on, and a deleted result is computed again; such a node does not \
          vote, unless `allow_eviction(true)` is set",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.servers().filter(|(_, s)| s.reached.is_ok()).map(|(name, s)| judge(name, s)).collect()
}

fn judge(name: &str, server: &Server) -> Finding {
    let subject = format!("{name} {}", server.at);
    let either = |name: &str, setting: &str| {
        server.info(name).or_else(|_| server.setting(setting)).map(str::to_owned)
    };
    let policy = match either("maxmemory_policy", "maxmemory-policy") {
        Ok(policy) => policy,
        Err(why) => return Finding::unknown(subject, why),
    };
    let limit = either("maxmemory", "maxmemory").ok();
    let evicted = server.info("evicted_keys").unwrap_or("unknown");
    let shown = limit.as_deref().unwrap_or("unknown");
    let read = format!("maxmemory-policy {policy}; maxmemory {shown}; evicted_keys {evicted}");
    if policy == "noeviction" {
        return Finding::fine(subject, read);
    }
    let mend = server.set("maxmemory-policy", "noeviction");
    if limit.as_deref() == Some("0") {
        let says = "locks will be deleted to free memory as soon as maxmemory is set";
        return Finding::warning(subject, says, read).mend(mend);
    }
    let says = format!(
        "locks are deleted when memory is full ({evicted} keys so far), so the node does not vote"
    );
    Finding::error(subject, says, read).mend(mend)
}

#[cfg(test)]
mod tests {
    use super::super::super::report::Verdict;
    use super::super::tests::{broken, fine, info_on};

    #[test]
    fn any_other_policy() {
        fine("eviction");
        let policy = |f: &mut super::Facts, limit: &str| {
            let server = &mut f.groups[0].servers[1];
            info_on(server, "maxmemory_policy", "volatile-lru");
            info_on(server, "maxmemory", limit);
        };
        let found = broken("eviction", |f| policy(f, "104857600"));
        assert_eq!((found.verdict, &*found.subject), (Verdict::Error, "orders-a 10.0.0.2:6379"));
        let mend = "redis-cli -h 10.0.0.2 -p 6379 CONFIG SET maxmemory-policy noeviction";
        assert_eq!(found.mend[0], mend);
        assert_eq!(broken("eviction", |f| policy(f, "0")).verdict, Verdict::Warning);
    }
}
