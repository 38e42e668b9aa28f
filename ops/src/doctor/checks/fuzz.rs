//! No answer makes a check overflow or panic, or adds a second command to one that people paste.

use proptest::prelude::*;
use proptest::sample::Index;

use super::super::facts::{Facts, Fields, is_plain, place};
use super::super::report::Report;
use super::run;
use super::tests::good;
use crate::fuzzing::{any_bytes, config};
use palisade::internal::Secrets;

fn any_text() -> impl Strategy<Value = String> {
    any_bytes().prop_map(|b| String::from_utf8_lossy(&b).into_owned())
}

fn all(facts: &mut Facts) -> Vec<&mut Fields> {
    let mut found = Vec::new();
    for group in &mut facts.groups {
        for sentinel in &mut group.sentinels {
            if let Ok(fields) = &mut sentinel.master {
                found.push(fields);
            }
            for list in [&mut sentinel.replicas, &mut sentinel.others].into_iter().flatten() {
                found.extend(list.iter_mut());
            }
        }
        for server in &mut group.servers {
            found.extend([&mut server.info, &mut server.config].into_iter().flatten());
        }
    }
    found
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_checks_do_not_panic_on_any_answer(
        harms in proptest::collection::vec((any::<Index>(), any::<Index>(), any_text()), 1..12),
    ) {
        let mut facts = good();
        let lone = facts.groups[0].servers[1].clone();
        facts.nodes.push(lone);
        for (which, line, value) in harms {
            let mut all = all(&mut facts);
            let at = which.index(all.len());
            let fields = &mut *all[at];
            let name = fields.keys().nth(line.index(fields.len())).expect("one of them").clone();
            fields.insert(name, value);
        }
        let report = Report::new(true, run(&facts), &Secrets::default());
        for command in report.findings.iter().flat_map(|f| &f.fix) {
            let ours = command.split("    # ").next().unwrap_or_default();
            prop_assert!(!ours.contains(['$', '`', '\n', '\u{1b}']), "{command:?}");
        }
        let shown = report.to_string();
        prop_assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
        prop_assert!(serde_json::from_str::<serde_json::Value>(&report.to_json()).is_ok());
    }

    #[test]
    fn fuzz_places_can_stand_in_a_command((host, port) in (any_text(), any_text())) {
        let fields = [("ip".to_owned(), host), ("port".to_owned(), port)].into();
        if let Some(at) = place(&fields) {
            prop_assert!(is_plain(&at.replace(['[', ']'], "")), "{at:?}");
        }
    }
}
