//! The doctor's check of a server that was declared `durable` (quarantine 23).

use super::super::facts::{Facts, Server};
use super::super::report::Finding;
use super::{Answer, Check, Run};

pub(super) const DURABLE: Check = Check {
    id: "durable",
    why: "a server that is declared `durable` votes right after a restart; if it lost a write that \
          it had confirmed, a lock has two holders, or a key runs twice",
    run: Run::Servers(durable),
};

fn durable(_: &Facts, server: &Server) -> Answer {
    if !server.durable {
        return Ok(Finding::fine("not declared"));
    }
    let setting = |name| {
        server.setting(name).map_err(|why| {
            format!(
                "declared `durable`, which only whoever runs the server can know: ask whether each \
                 confirmed write is there after every restart and failover ({why})"
            )
        })
    };
    let appends = if server.info("aof_enabled")? == "1" { "yes" } else { "no" };
    let (sync, rewrites) = (setting("appendfsync")?, setting("no-appendfsync-on-rewrite")?);
    let wanted = [
        ("appendonly", appends, "yes"),
        ("appendfsync", sync, "always"),
        ("no-appendfsync-on-rewrite", rewrites, "no"),
    ];
    let wrong = wanted.into_iter().filter(|(_, is, wanted)| is != wanted);
    let fix: Vec<_> = wrong.flat_map(|(name, _, wanted)| server.set(name, wanted)).collect();
    let evidence = wanted.map(|(name, is, _)| format!("{name} {is}")).join("; ");
    if !fix.is_empty() {
        let message = "declared `durable`, but a crash loses writes that it confirmed: change its \
                       settings, or take `durable` out of its address in every program";
        return Ok(Finding::error(message, evidence).fix(fix));
    }
    let replicas = server.info("connected_slaves").unwrap_or("0");
    Ok(if replicas == "0" {
        Finding::fine(format!("{evidence}: now; how it was before is not known"))
    } else {
        let message = "declared `durable`, but a replica follows it, and lacks the last writes if \
                       it is promoted: promote none, or take `durable` out of its address in \
                       every program";
        let role = server.by_hand("INFO replication");
        Finding::warning(message, format!("connected_slaves:{replicas}")).fix([role])
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Unread;
    use super::super::super::report::Verdict;
    use super::super::tests::{good, info_on, server, set_on};
    use super::*;

    fn found(change: impl FnOnce(&mut Server)) -> Result<(Verdict, String, Vec<String>), String> {
        let mut one = Server { durable: true, ..server(1) };
        info_on(&mut one, "connected_slaves", "0");
        set_on(&mut one, "appendfsync", "always");
        set_on(&mut one, "no-appendfsync-on-rewrite", "no");
        change(&mut one);
        durable(&good(), &one).map(|f| (f.verdict, f.evidence, f.fix))
    }

    #[test]
    fn a_declaration_is_checked_as_far_as_the_settings_show() {
        let verdict = |change: fn(&mut Server)| found(change).map(|(verdict, ..)| verdict);
        assert_eq!(verdict(|_| ()), Ok(Verdict::Fine));
        assert_eq!(verdict(|one| info_on(one, "connected_slaves", "1")), Ok(Verdict::Warning));
        let why = found(|one| one.config = Err(Unread::Closed("no".into())));
        assert!(why.is_err_and(|why| why.contains("only whoever runs the server can know")));
        for (name, value) in [("appendfsync", "everysec"), ("no-appendfsync-on-rewrite", "yes")] {
            let (verdict, evidence, fix) = found(|one| set_on(one, name, value)).expect("known");
            assert_eq!(verdict, Verdict::Error);
            assert!(evidence.contains(&format!("{name} {value}")), "{evidence}");
            assert!(fix[0].contains(&format!("CONFIG SET {name} ")) && fix.len() == 2, "{fix:?}");
            let undeclared = |one: &mut Server| {
                set_on(one, name, value);
                one.durable = false;
            };
            assert_eq!(found(undeclared).expect("known").0, Verdict::Fine);
        }
        let (verdict, _, fix) = found(|one| info_on(one, "aof_enabled", "0")).expect("known");
        assert_eq!((verdict, fix.len()), (Verdict::Error, 2));
    }
}
