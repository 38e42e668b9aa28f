//! How many writes does a power loss destroy?

use super::super::facts::Facts;
use super::super::report::{Finding, Severity};
use super::Check;

/// The kernel alone decides when the append-only file reaches the disk.
pub(super) const CHECK: Check = Check {
    id: "appendfsync",
    severity: Severity::Warning,
    title: "the append-only file reaches the disk within two seconds",
    why: "a power loss destroys the writes that have not reached the disk: with `everysec` one or \
          two seconds of them, which the quarantine after a restart covers; with `no` all that the \
          kernel still buffers, about thirty seconds, results included",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, server) in facts.servers().filter(|(_, s)| s.reached.is_ok()) {
        // Without the file there is nothing to flush; `persistence` reports that.
        if server.info("aof_enabled").is_ok_and(|on| on == "0") {
            continue;
        }
        let subject = format!("{name} {}", server.at);
        found.push(match server.setting("appendfsync") {
            Err(why) => Finding::unknown(subject, why),
            Ok("no") => {
                let says = "the kernel decides when grants and results reach the disk";
                Finding::warning(subject, says, "appendfsync no")
                    .mend(server.set("appendfsync", "everysec"))
            }
            Ok(how) => Finding::fine(subject, format!("appendfsync {how}")),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tests::{broken, close_config, fine, set, unknown, with};

    #[test]
    fn what_is_left_to_the_kernel() {
        fine("appendfsync");
        with("appendfsync", |f| set(f, "appendfsync", "always"), |_| {});
        let found = broken("appendfsync", |f| set(f, "appendfsync", "no"));
        let mend = "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET appendfsync everysec";
        assert_eq!(found.mend[0], mend);
        unknown("appendfsync", close_config);
    }
}
