//! Does a restart from the append-only file bring back what scripts wrote?

use super::super::facts::{Facts, REPLAYED, Server};
use super::super::report::{Finding, Severity};
use super::Check;

/// The user `default` may not write, and the file is replayed with its rights.
pub(super) const CHECK: Check = Check {
    id: "aof-replay",
    severity: Severity::Error,
    title: "a restart from the append-only file brings back what scripts wrote",
    why: "Redis up to 8.2 at least, and Valkey before 9.1, replay the file with the rights of the \
          user `default` and silently skip transactions that this user may not run; a script's \
          writes are a transaction, so every lock and every result is lost",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.servers().filter(|(_, s)| s.reached.is_ok()).map(|(name, s)| judge(name, s)).collect()
}

fn judge(name: &str, server: &Server) -> Finding {
    let subject = format!("{name} {}", server.at);
    match server.info("aof_enabled") {
        Ok("1") => {}
        Ok(_) => return Finding::fine(subject, "aof_enabled:0"),
        Err(why) => return Finding::unknown(subject, why),
    }
    if checks_nobody(server) {
        return Finding::fine(subject, "Valkey 9.1 or newer");
    }
    let denied = match server.replays.known() {
        Ok(None) => return Finding::fine(subject, format!("default may {REPLAYED}")),
        Ok(Some(why)) => why,
        Err(why) => return Finding::unknown(subject, why),
    };
    let says = "a restart loses every lock and every result: the append-only file is replayed as \
                the user `default`, which may not write; give that user the rights (it can stay \
                `off`)";
    Finding::error(subject, says, format!("aof_enabled:1; {denied}")).mend([
        server.by_hand("ACL SETUSER default '+@all' '~*' '&*'"),
        server.by_hand("ACL SAVE    # or CONFIG REWRITE, where no aclfile is set"),
    ])
}

/// Whether this server replays its file without checking any user's rights.
fn checks_nobody(server: &Server) -> bool {
    let version = server.info("valkey_version").unwrap_or_default();
    let mut parts = version.split('.').map_while(|n| n.parse::<u32>().ok());
    (parts.next(), parts.next()) >= (Some(9), Some(1))
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::super::report::Verdict;
    use super::super::tests::{broken, fine, info_on, unknown};
    use super::*;

    fn denied(facts: &mut Facts) {
        facts.groups[0].servers[0].replays = Read::Got(Some("no permissions to run 'set'".into()));
    }

    #[test]
    fn a_user_default_without_rights_loses_what_scripts_wrote() {
        fine("aof-replay");
        let found = broken("aof-replay", denied);
        assert_eq!((found.verdict, &*found.subject), (Verdict::Error, "orders-a 10.0.0.1:6379"));
        assert!(found.mend[0].contains("ACL SETUSER default"), "{found:?}");
        unknown("aof-replay", |f| {
            f.groups[0].servers[0].replays = Read::Closed("ACL DRYRUN is not allowed".into());
        });
    }

    #[test]
    fn a_server_that_asks_for_no_rights_is_fine() {
        let mut facts = super::super::tests::good();
        denied(&mut facts);
        let server = &mut facts.groups[0].servers[0];
        info_on(server, "valkey_version", "9.0.4");
        assert_eq!(judge("a", server).verdict, Verdict::Error);
        info_on(server, "valkey_version", "9.1.2");
        assert_eq!(judge("a", server).verdict, Verdict::Fine);
        info_on(server, "aof_enabled", "0");
        info_on(server, "valkey_version", "");
        assert_eq!(judge("a", server).verdict, Verdict::Fine);
    }
}
