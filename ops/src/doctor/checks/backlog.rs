//! The doctor's check of what makes a server rename its data, where that begins a quarantine.

use super::super::facts::{Facts, Server};
use super::super::report::Finding;
use super::{Answer, Check, Run};
use crate::backlog::TTL;

/// A server that cannot prove that its rename lost nothing (rule quarantine 19 in docs/design).
pub(super) const HISTORY_RENAME: Check = Check {
    id: "history-rename",
    why: "a server without replicas gives its data another master_replid: an hour after the last \
          one left, and when the first one attaches, which a backup by `redis-cli --rdb` is, too; \
          a server that cannot prove that it lost nothing meanwhile grants nothing for one \
          quarantine, and keys without created_at count as forgotten, after each backup again",
    run: Run::Servers(history_rename),
};

fn history_rename(_: &Facts, server: &Server) -> Answer {
    let cause = if !server.info.as_ref()?.contains_key("total_net_repl_input_bytes") {
        "servers before 7.0 do not count what they copy"
    } else if *server.was_reset.as_ref()? {
        "CONFIG RESETSTAT has deleted its counters; they count again after a restart"
    } else {
        return Ok(Finding::fine("a rename is recognised by the counters"));
    };
    let (active, ttl) = (server.info("repl_backlog_active")? != "0", server.setting(TTL)?);
    let evidence = format!("{cause}; repl_backlog_active:{}; {TTL} {ttl}", u8::from(active));
    let keep = (ttl != "0").then(|| server.set(TTL, "0")).into_iter().flatten();
    if !active {
        let message = "the first replica, or the first backup by `redis-cli --rdb`, begins a \
                       quarantine; make one backup when that does not matter: later ones begin \
                       none until the next restart";
        let attach = server.by_hand("--rdb - >/dev/null    # when a quarantine does not matter");
        return Ok(Finding::warning(message, evidence).fix(keep).fix([attach]));
    }
    if ttl == "0" {
        return Ok(Finding::fine(evidence));
    }
    let message = format!("a quarantine begins {ttl} s after its last replica left, or its backup");
    Ok(Finding::warning(message, evidence).fix(keep))
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Unread;
    use super::super::super::report::Verdict;
    use super::super::tests::{broken, close_config, fine, info_on, set_on, unknown, with};
    use super::*;

    const ID: &str = "history-rename";

    fn reset(f: &mut Facts) {
        f.groups[0].servers[0].was_reset = Ok(true);
    }

    #[test]
    fn a_rename_that_is_recognised_is_no_fault() {
        fine(ID);
        let renames = |f: &mut Facts| {
            let server = &mut f.groups[0].servers[0];
            set_on(server, TTL, "3600");
            info_on(server, "repl_backlog_active", "0");
        };
        with(ID, renames, |_| {});
        with(ID, close_config, |_| {});
    }

    #[test]
    fn a_backlog_that_is_kept_prevents_the_rename() {
        with(ID, reset, |_| {});
        let found = broken(ID, |f| {
            reset(f);
            set_on(&mut f.groups[0].servers[0], TTL, "3600");
        });
        assert_eq!((found.verdict, &*found.subject), (Verdict::Warning, "orders-a 10.0.0.1:6379"));
        assert!(found.message.contains("begins 3600 s after its last replica left"), "{found:?}");
        let to = "redis-cli -h 10.0.0.1 -p 6379";
        let set = format!("{to} CONFIG SET repl-backlog-ttl 0");
        assert_eq!(found.fix, [set, format!("{to} CONFIG REWRITE")]);
        let closed = |f: &mut Facts| {
            reset(f);
            close_config(f);
        };
        assert_eq!(unknown(ID, closed).message, "unknown (CONFIG not allowed)");
        let unread = |f: &mut Facts| {
            f.groups[0].servers[0].was_reset = Err(Unread::Closed("INFO not allowed".into()));
        };
        assert_eq!(unknown(ID, unread).message, "unknown (INFO not allowed)");
    }

    #[test]
    fn an_old_server_without_a_backlog_is_told_to_make_one() {
        let found = broken(ID, |f| {
            let server = &mut f.groups[0].servers[0];
            let Ok(info) = &mut server.info else { panic!("INFO is closed") };
            info.remove("total_net_repl_input_bytes");
            info_on(server, "repl_backlog_active", "0");
        });
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.evidence.starts_with("servers before 7.0 do not count"), "{found:?}");
        let backup = "redis-cli -h 10.0.0.1 -p 6379 --rdb - >/dev/null    # ";
        assert!(found.fix[0].starts_with(backup) && found.fix.len() == 1, "{found:?}");
    }
}
