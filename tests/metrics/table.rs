//! The table of metrics in the manual must match the metrics that the code registers: names, kinds,
//! units, labels and meanings.

use std::collections::{BTreeMap, BTreeSet};

use palisade::{Failed, Redlock};
use palisade_cron::{Cron, Job};

use crate::recorder::Kept;
use crate::world::{S, World};

const MANUAL: &str = include_str!("../../src/manual/metrics.md");

struct Row {
    described: (String, String, String),
    labels: BTreeSet<String>,
}

fn rows() -> BTreeMap<String, Row> {
    let rows = MANUAL.lines().filter(|line| line.starts_with("| `palisade_"));
    rows.map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, unit, labels, help] = cells[..] else { panic!("{line}") };
        let labels = labels.split(", ").filter(|l| !l.is_empty());
        let row = Row {
            described: (kind.to_owned(), unit.to_owned(), help.to_owned()),
            labels: labels.map(|l| l.trim_matches('`').to_owned()).collect(),
        };
        (name.trim_matches('`').to_owned(), row)
    })
    .collect()
}

/// Runs an operation for each metric, so that all metrics are registered.
async fn everything(world: &World, redlock: &Redlock) {
    drop(redlock.mutex("a").build().unwrap().acquire().await.unwrap());
    let election = redlock.election("e").build().unwrap();
    let leadership = election.campaign("me").await.unwrap();
    let _ = election.observe().next().await;
    leadership.resign().await.unwrap();
    let keys = redlock.idempotency("n").at_most_once().build().unwrap();
    keys.key("k").run(|_| async { Ok::<_, Failed>(()) }).await.unwrap().into_value().unwrap();
    let cron = Cron::new(redlock);
    let job = Job::new("j", "* * * * * *");
    let run = cron.run(job, |_| async { Ok::<_, Failed>(()) });
    let _ = tokio::time::timeout(3 * S, run).await;
    world.links[0].cut();
    drop(redlock.mutex("a").build().unwrap().acquire().await.unwrap());
    tokio::time::sleep(3 * S).await;
}

#[tokio::test(start_paused = true)]
async fn the_manuals_table_is_what_the_code_registers() {
    let kept = Kept::new();
    let _recorder = kept.install();
    let world = World::new();
    everything(&world, &world.redlock()).await;

    let rows = rows();
    let described: BTreeMap<_, _> = kept
        .described()
        .into_iter()
        .map(|(name, (kind, unit, help))| (name, (kind.to_owned(), unit.to_owned(), help)))
        .collect();
    let in_manual: BTreeMap<_, _> =
        rows.iter().map(|(name, row)| (name.clone(), row.described.clone())).collect();
    assert_eq!(described, in_manual);

    let series = kept.series();
    let seen: BTreeSet<_> = series.iter().map(|(name, ..)| name.clone()).collect();
    assert_eq!(seen, rows.keys().cloned().collect(), "registered, and in the manual");
    for (name, kind, labels) in series {
        let row = &rows[&name];
        assert_eq!(kind, row.described.0, "{name}");
        assert_eq!(labels.into_iter().collect::<BTreeSet<_>>(), row.labels, "{name}");
    }
}

#[test]
fn names_carry_their_unit() {
    for (name, row) in rows() {
        let (kind, unit, _) = &row.described;
        let ending = match (kind.as_str(), unit.as_str()) {
            ("counter", "count") => "_total",
            (_, "seconds") => "_seconds",
            (_, "ratio") => "_ratio",
            ("gauge", "count") => continue,
            other => panic!("{name}: {other:?}"),
        };
        assert!(name.ends_with(ending), "{name} does not end with {ending}");
    }
}

#[tokio::test(start_paused = true)]
async fn outcomes_of_the_manual_are_those_of_the_code() {
    let kept = Kept::new();
    let _recorder = kept.install();
    let world = World::new();
    everything(&world, &world.redlock()).await;
    for (name, outcomes) in kept.outcomes() {
        let head = format!("- `{name}`: ");
        let Some(at) = MANUAL.find(&head) else { panic!("{name}'s outcomes are not explained") };
        let text = MANUAL[at + head.len()..].split("\n- ").next().unwrap_or_default();
        let text = text.split("\n\n").next().unwrap_or_default();
        // The manual lists the outcomes of each metric. They are the words in code style in the
        // metric's item of this list.
        let words: BTreeSet<_> =
            text.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect();
        assert_eq!(words, outcomes, "{name}");
    }
}
