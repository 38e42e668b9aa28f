//! Do the replicas follow, closely, and do they take no writes of their own?

use super::super::facts::{Facts, Server, join};
use super::super::report::{Finding, Severity};
use super::Check;

/// Age of the last acknowledgement in seconds from which a replica lags. They come once a second.
const LAG: u64 = 3;

pub(super) const CHECK: Check = Check {
    id: "replicas",
    severity: Severity::Warning,
    title: "replicas follow the master closely and take no writes",
    why: "a replica without a link or with old data loses grants when it is promoted, and does not \
          count for the min-replicas check; a lock that is written on a replica was not granted by \
          the master",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for group in &facts.groups {
        let Some(master) = group.master() else { continue };
        for replica in group.replicas().filter(|s| s.reached.is_ok()) {
            let subject = format!("{} {}", group.name, replica.at);
            match replica.info("role") {
                // `two-masters` reports that.
                Ok("master") => {}
                Ok(_) => found.push(judge(subject, master, replica)),
                Err(why) => found.push(Finding::unknown(subject, why)),
            }
        }
    }
    found
}

fn judge(subject: String, master: &Server, replica: &Server) -> Finding {
    let link = replica.info("master_link_status").unwrap_or("unknown");
    let writable = replica.info("slave_read_only") == Ok("0");
    let seen = line_of(master, &replica.at);
    let shown = |l: &Line| format!("lag={} and {} bytes behind", l.lag, l.gap);
    let shown = seen.as_ref().map_or("not listed".to_owned(), shown);
    let read_only = u8::from(!writable);
    let read =
        format!("master_link_status:{link}; slave_read_only:{read_only}; at the master: {shown}");
    let mut says = Vec::new();
    let mut mend = Vec::new();
    if link != "up" {
        let since = replica.info("master_link_down_since_seconds").unwrap_or("unknown");
        says.push(format!("its link to the master is down (for {since} s)"));
        mend.push(replica.by_hand("INFO replication"));
        mend.push(replica.by_hand("CONFIG SET masteruser <user> masterauth <password>"));
    } else if let Some(seen) = seen
        && let Some(text) = seen.behind(master)
    {
        says.push(text);
        mend.push(master.by_hand("INFO replication"));
    }
    if writable {
        says.push("it takes writes of its own".to_owned());
        mend.extend(replica.set("replica-read-only", "yes"));
    }
    if says.is_empty() {
        return Finding::fine(subject, read);
    }
    Finding::warning(subject, says.join("; "), read).mend(mend)
}

/// A replica as its master sees it.
struct Line {
    lag: u64,
    /// Bytes not acknowledged.
    gap: u64,
}

impl Line {
    fn behind(&self, master: &Server) -> Option<String> {
        if self.lag >= LAG {
            return Some(format!("the master has not heard from it for {} s", self.lag));
        }
        // Beyond the backlog it needs a full copy; half of it is more than a short delay.
        let backlog = master.info("repl_backlog_size").ok()?.parse::<u64>().ok()?;
        (self.gap > backlog / 2).then(|| format!("it is {} KB behind the master", self.gap / 1024))
    }
}

/// `slave0:ip=10.0.0.2,port=6379,state=online,offset=1000,lag=0`
fn line_of(master: &Server, at: &str) -> Option<Line> {
    let info = master.info.ok()?;
    let offset: u64 = info.get("master_repl_offset")?.parse().ok()?;
    info.iter().filter(|(name, _)| is_line(name)).find_map(|(_, line)| {
        let field = |name: &str| {
            line.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        (join(field("ip")?, field("port")?) == at).then_some(())?;
        let gap = offset.saturating_sub(field("offset")?.parse().ok()?);
        Some(Line { lag: field("lag")?.parse().ok()?, gap })
    })
}

fn is_line(name: &str) -> bool {
    let number = name.strip_prefix("slave");
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{broken, fine, info_on};

    #[test]
    fn a_replica_that_does_not_follow_closely() {
        fine("replicas");
        let found = broken("replicas", |f| {
            info_on(&mut f.groups[0].servers[1], "master_link_status", "down");
        });
        assert_eq!(found.subject, "orders-a 10.0.0.2:6379");
        for (line, text) in
            [("offset=1000,lag=3", "not heard from it for 3 s"), ("offset=0,lag=0", "KB behind")]
        {
            let found = broken("replicas", |f| {
                let master = &mut f.groups[0].servers[0];
                info_on(master, "master_repl_offset", "1000000");
                info_on(master, "repl_backlog_size", "1048576");
                let near = "ip=10.0.0.2,port=6379,state=online,offset=1000000,lag=1";
                info_on(master, "slave0", near);
                info_on(master, "slave1", &format!("ip=10.0.0.3,port=6379,state=online,{line}"));
            });
            assert_eq!(found.subject, "orders-a 10.0.0.3:6379");
            assert!(found.says.contains(text), "{found:?}");
        }
    }

    #[test]
    fn a_replica_that_takes_writes() {
        let found = broken("replicas", |f| {
            info_on(&mut f.groups[0].servers[2], "slave_read_only", "0");
        });
        let mend = "redis-cli -h 10.0.0.3 -p 6379 CONFIG SET replica-read-only yes";
        assert_eq!(found.mend[0], mend);
    }
}
