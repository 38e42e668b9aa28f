//! May our user send all commands that the library sends?

use std::collections::BTreeSet;

use super::super::facts::{Facts, Server};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "permissions",
    severity: Severity::Error,
    title: "our user may send every command of the minimal profile",
    why: "a node on which one command of a script is refused grants nothing, or grants and cannot \
          release; a replica with fewer rights fails that way after a failover",
    run,
};

/// Commands that a node can do without, and what is missing without them.
const SPARED: [(&str, &str); 3] = [
    ("PUBLISH", "waiters are not woken, they poll"),
    ("SUBSCRIBE", "waiters are not woken, they poll"),
    ("WAIT", "no durability above `Primary` is possible"),
];

fn run(facts: &Facts) -> Vec<Finding> {
    facts.servers().filter(|(_, s)| s.reached.is_ok()).map(|(name, s)| judge(name, s)).collect()
}

fn judge(name: &str, server: &Server) -> Finding {
    let subject = format!("{name} {}", server.at);
    let may = match server.may.known() {
        Ok(may) => may,
        Err(why) => return Finding::unknown(subject, why),
    };
    let user = user(server);
    let refused: Vec<(&str, &str)> =
        may.iter().filter_map(|(command, why)| Some((&**command, why.as_deref()?))).collect();
    if refused.is_empty() {
        return Finding::fine(subject, format!("{user} may send all {} commands", may.len()));
    }
    let names: Vec<String> = refused.iter().map(|(command, _)| operation(command)).collect();
    let rules: BTreeSet<String> = refused.iter().map(|(command, why)| rule(command, why)).collect();
    let rules: Vec<String> = rules.into_iter().collect();
    let mend = [
        admin(server, &format!("ACL SETUSER {user} {}", rules.join(" "))),
        // Where users live in a file of their own it is ACL SAVE.
        format!("{} || {}", admin(server, "CONFIG REWRITE"), admin(server, "ACL SAVE")),
    ];
    let read = refused.iter().map(|(command, why)| format!("{}: {why}", operation(command)));
    let read = read.collect::<Vec<_>>().join("; ");
    let says = format!("{user} may not send {}", names.join(", "));
    let costs = |name: &String| SPARED.iter().find(|(n, _)| n == name).map(|(_, costs)| *costs);
    if let Some(costs) = names.iter().map(costs).collect::<Option<BTreeSet<_>>>() {
        let costs: Vec<_> = costs.into_iter().collect();
        let says = format!("{says}: {}", costs.join("; "));
        return Finding::warning(subject, says, read).mend(mend);
    }
    Finding::error(subject, says, read).mend(mend)
}

/// The name of our user, as far as it is known.
fn user(server: &Server) -> String {
    let typed = || server.hand.split(" --user ").nth(1)?.split(' ').next();
    let user = server.user.ok().map(String::as_str).or_else(typed);
    user.unwrap_or("default").to_owned()
}

/// The same command line, as a user that may change users.
fn admin(server: &Server, command: &str) -> String {
    let typed = server.hand.split(" --user ").nth(1).and_then(|rest| rest.split(' ').next());
    if server.user.ok().is_some_and(|whose| typed.is_some_and(|us| us != whose)) {
        // An operator examined the rights of another user (`rights_of`).
        return server.by_hand(command);
    }
    let to = server.hand.split(" --user ").next().unwrap_or_default();
    let to = to.split(" --askpass").next().unwrap_or_default();
    format!("{to} --user default --askpass {command}")
}

/// `SCRIPT LOAD x` → `SCRIPT LOAD`, `GET k` → `GET`.
fn operation(command: &str) -> String {
    let mut words = command.split(' ');
    let first = words.next().unwrap_or_default();
    let second = words.next().filter(|_| first == "SCRIPT");
    second.map_or_else(|| first.to_owned(), |second| format!("{first} {second}"))
}

/// What an ACL lacks: the command, its keys or its channel.
fn rule(command: &str, why: &str) -> String {
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
    use super::super::super::facts::{COMMANDS, Read};
    use super::super::super::report::Verdict;
    use super::super::tests::{broken, fine, unknown};
    use super::*;

    fn refuse(facts: &mut Facts, begin: &str, why: &str) {
        let Read::Got(all) = &mut facts.groups[0].servers[1].may else { unreachable!() };
        for (command, refusal) in all.iter_mut().filter(|(c, _)| c.starts_with(begin)) {
            *refusal = Some(format!("This user has no permissions to {why} for {command}"));
        }
    }

    #[test]
    fn a_missing_right_is_told_with_the_rule() {
        fine("permissions");
        let reported = |begin, why: &str| broken("permissions", |f| refuse(f, begin, why));
        let found = reported("SCRIPT LOAD", "run the 'script|load' command");
        assert_eq!(found.subject, "orders-a 10.0.0.2:6379");
        let to = "redis-cli -h 10.0.0.2 -p 6379 --user default --askpass";
        assert_eq!(found.mend[0], format!("{to} ACL SETUSER default +script|load"));
        let found = reported("SET ", "access the 'palisade:doctor' key");
        assert!(found.mend[0].ends_with("default '~*'"), "{found:?}");
        let found = reported("SUBSCRIBE", "access the 'palisade:changed' channel");
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.mend[0].ends_with("default '&palisade:changed*'"), "{found:?}");
        let found = reported("WAIT", "run the 'wait' command");
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.says.ends_with("no durability above `Primary` is possible"), "{found:?}");
        let closed = |f: &mut Facts| {
            f.groups[0].servers[2].may = Read::Closed("ACL DRYRUN not allowed".into());
        };
        assert!(unknown("permissions", closed).says.contains("ACL DRYRUN not allowed"));
    }

    /// The profile in the manual is what is tried, and nothing else.
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
}
