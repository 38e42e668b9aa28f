//! All servers of a group notice equally fast that they have lost their replicas.

use super::super::facts::{Facts, Group};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "lags-differ",
    severity: Severity::Warning,
    title: "min-replicas-max-lag is the same on every server of a group",
    why: "a replaced master goes on granting for as long as its own lag allows, so after each \
          failover nothing is granted for as long as the largest lag of the group requires; a \
          client that cannot read the settings does not know that lag",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.groups.iter().filter(|g| !g.servers.is_empty()).map(judge).collect()
}

fn judge(group: &Group) -> Finding {
    let lags = match group.lags() {
        Ok(lags) => lags,
        Err(why) => return Finding::unknown(&group.name, why),
    };
    let each: Vec<String> = lags
        .iter()
        .map(|(lag, servers)| {
            let at: Vec<&str> = servers.iter().map(|s| s.at.as_str()).collect();
            format!("{lag} at {}", at.join(", "))
        })
        .collect();
    let read = format!("min-replicas-max-lag {}", each.join("; "));
    // The smallest lag is probably the one that was chosen on purpose.
    let Some((least, _)) = lags.first_key_value().filter(|_| lags.len() > 1) else {
        return Finding::fine(&group.name, read);
    };
    let others = lags.values().skip(1).flatten();
    let mend = others.flat_map(|s| s.set("min-replicas-max-lag", &least.to_string()));
    Finding::warning(&group.name, "its servers have different lags", read).mend(mend)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{broken, close_config, fine, set, set_on, unknown, with};

    #[test]
    fn one_server_with_another_lag() {
        fine("lags-differ");
        let found = broken("lags-differ", |f| {
            set_on(&mut f.groups[0].servers[2], "min-replicas-max-lag", "3");
        });
        assert_eq!(found.subject, "orders-a");
        assert_eq!(
            found.read,
            "min-replicas-max-lag 2 at 10.0.0.1:6379, 10.0.0.2:6379; 3 at 10.0.0.3:6379"
        );
        let to = "redis-cli -h 10.0.0.3 -p 6379 CONFIG";
        assert_eq!(
            found.mend,
            [format!("{to} SET min-replicas-max-lag 2"), format!("{to} REWRITE")]
        );
        // The same is right, whatever it is.
        with("lags-differ", |f| set(f, "min-replicas-max-lag", "9"), |_| {});
        assert_eq!(unknown("lags-differ", close_config).says, "unknown (CONFIG not allowed)");
    }
}
