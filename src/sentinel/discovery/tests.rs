//! Cases of `testdata/*.txt`: Sentinels, their answers, and the decision.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

/// Parses `name[=id] master ADDR [epoch=N] [others=N] [down-after=MS] [peers=ADDR|name=id,…]`,
/// `name null`, or `name timeout|refused|plain|auth|noperm|strange`.
fn answer(line: &str) -> Answer {
    let mut words = line.split_whitespace();
    let who = words.next().unwrap();
    let (name, id) = who.split_once('=').map_or((who, None), |(n, i)| (n, Some(i.into())));
    let from = Address::new(name, 26379).unwrap();
    let failed = |t| SentinelReply::Failed(t, "why".into());
    let reply = match words.next().unwrap() {
        "master" => {
            let at = words.next().unwrap().parse().unwrap();
            let mut facts = None;
            let mut peers = Vec::new();
            for word in words {
                let (key, value) = word.split_once('=').unwrap();
                if key == "peers" {
                    let peer = |p: &str| match p.split_once('=') {
                        Some((name, id)) => {
                            Peer { at: Address::new(name, 26379).unwrap(), id: Some(id.into()) }
                        }
                        None => Peer { at: p.parse().unwrap(), id: None },
                    };
                    peers = value.split(',').map(peer).collect();
                    continue;
                }
                let f = facts.get_or_insert(MasterFacts {
                    epoch: 0,
                    quorum: 2,
                    others: 0,
                    replicas: 2,
                    down_after: Duration::from_secs(5),
                    troubled: false,
                });
                match key {
                    "epoch" => f.epoch = value.parse().unwrap(),
                    "others" => f.others = value.parse().unwrap(),
                    "down-after" => f.down_after = Duration::from_millis(value.parse().unwrap()),
                    _ => panic!("unknown word {word}"),
                }
            }
            SentinelReply::Master { at, facts, peers }
        }
        "null" => SentinelReply::Unknown("monitors no master of this name".into()),
        "timeout" => failed(Trouble::Timeout),
        "refused" => failed(Trouble::Unreachable),
        "plain" => failed(Trouble::NotSentinel),
        "auth" => failed(Trouble::Auth),
        "noperm" => failed(Trouble::NoPermission),
        "strange" => failed(Trouble::Strange),
        other => panic!("unknown answer {other}"),
    };
    Answer { from, id, reply, in_tilt: false }
}

fn shown(decision: &Result<Master, NodeError>) -> String {
    match decision {
        Ok(m) => {
            let mut text = format!("{}", m.at);
            if let Some(e) = m.epoch {
                write!(text, " epoch={e}").unwrap();
            }
            if let Some(d) = m.down_after {
                write!(text, " down-after={}", d.as_millis()).unwrap();
            }
            text
        }
        Err(e) => format!("{:?}", e.fault()),
    }
}

/// A case is `case WORDS`, `sentinels: a b c`, and rounds of answer lines, each ended by `=>
/// DECISION` and perhaps `ask: a b c d`, the expected list of Sentinels.
fn run(file: &str, text: &str) -> usize {
    let mut rows = 0;
    let mut machine = Discovery::new(Vec::new());
    let mut answers: Vec<Answer> = Vec::new();
    let mut case = "";
    for (n, line) in text.lines().enumerate() {
        let place = format!("{file}:{} ({case})", n + 1);
        let line = line.split('#').next().unwrap().trim();
        if line.is_empty() {
        } else if let Some(words) = line.strip_prefix("case ") {
            case = words;
        } else if let Some(list) = line.strip_prefix("sentinels:") {
            let list = list.split_whitespace();
            machine = Discovery::new(list.map(|s| Address::new(s, 26379).unwrap()).collect());
        } else if let Some(expected) = line.strip_prefix("=>") {
            if let Some(first) =
                answers.iter().find(|a| !matches!(a.reply, SentinelReply::Failed(..)))
            {
                machine.first_replier(&first.from.clone());
            }
            machine.learn(&answers);
            let decision = machine.decide(&answers);
            assert_eq!(shown(&decision), expected.trim(), "{place}: {decision:?}");
            if let Err(e) = decision {
                for a in &answers {
                    assert!(e.detail().contains(&a.from.to_string()), "{place}: {e}");
                }
            }
            answers.clear();
            rows += 1;
        } else if let Some(list) = line.strip_prefix("ask:") {
            let hosts: Vec<_> = machine.sentinels().iter().map(Address::host).collect();
            assert_eq!(hosts.join(" "), list.trim(), "{place}");
        } else {
            answers.push(answer(line));
        }
    }
    assert!(answers.is_empty(), "{file}: a round without `=>` at the end");
    rows
}

#[test]
fn tables() {
    let rows = run("majority.txt", include_str!("../testdata/majority.txt"))
        + run("epoch.txt", include_str!("../testdata/epoch.txt"))
        + run("reset.txt", include_str!("../testdata/reset.txt"))
        + run("faults.txt", include_str!("../testdata/faults.txt"))
        + run("lies.txt", include_str!("../testdata/lies.txt"))
        + run("learn.txt", include_str!("../testdata/learn.txt"));
    assert!(rows >= 25, "only {rows} rows");
}

#[test]
fn the_list_is_bounded() {
    let mut machine = Discovery::new(vec![Address::new("a", 1).unwrap()]);
    let peers: Vec<_> = (0..200).map(|i| format!("10.0.0.{i}:26379")).collect();
    let peers = peers.join(",");
    assert!(machine.learn(&[answer(&format!("a master 10.0.1.1:1 peers={peers}"))]));
    assert_eq!(machine.sentinels().len(), SENTINELS_MAX);
}

fn any_answer() -> impl Strategy<Value = String> {
    let who = prop_oneof![Just("a"), Just("b"), Just("c"), Just("d"), Just("e")];
    let id = prop_oneof![Just(""), Just("=x"), Just("=y"), Just("=z")];
    let master = ("(r1|r2)", proptest::option::of(0_u64..4), 0_u32..5).prop_map(|(at, e, o)| {
        let facts = e.map(|e| format!(" epoch={e} others={o}")).unwrap_or_default();
        format!("master {at}:6379{facts}")
    });
    let other = "(null|timeout|refused|plain|auth|noperm|strange)";
    (who, id, prop_oneof![3 => master, 1 => other]).prop_map(|(w, i, s)| format!("{w}{i} {s}"))
}

proptest! {
    /// The order of the answers never changes the decision.
    #[test]
    fn order_never_matters(
        lines in proptest::collection::vec(any_answer(), 1..7),
        before in proptest::collection::vec(any_answer(), 0..7),
        salt in any::<u64>(),
    ) {
        let [answers, before] = [&lines, &before]
            .map(|lines| lines.iter().map(|l| answer(l)).collect::<Vec<_>>());
        let mut shuffled = answers.clone();
        shuffled.sort_by_key(|a| {
            let words = format!("{a:?}{salt}");
            words.bytes().fold(salt, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
        });
        let start = || {
            let list = ["a", "b", "c"].map(|s| Address::new(s, 26379).unwrap());
            let mut machine = Discovery::new(list.to_vec());
            let _ = machine.decide(&before);
            machine
        };
        let (mut one, mut two) = (start(), start());
        one.learn(&answers);
        two.learn(&shuffled);
        prop_assert_eq!(one.decide(&answers), two.decide(&shuffled));
        prop_assert_eq!((one.seen, one.said), (two.seen, two.said));
    }

    /// Nobody was reset.
    #[test]
    fn without_a_reset_no_decision_is_older_than_an_earlier_one(
        rounds in proptest::collection::vec(
            [0_u64..3, 0_u64..3, 0_u64..3, 0_u64..3, 0_u64..3], 1..6),
        silent in proptest::collection::vec(any::<[bool; 5]>(), 6),
        size in prop_oneof![Just(3_usize), Just(5)],
    ) {
        let names = ["a", "b", "c", "d", "e"];
        let list = names[..size].iter().map(|s| Address::new(s, 26379).unwrap()).collect();
        let mut machine = Discovery::new(list);
        let (mut epochs, mut last) = ([0; 5], 0);
        for (steps, silent) in rounds.iter().zip(&silent) {
            let answers: Vec<_> = (0..size).map(|n| {
                epochs[n] += steps[n];
                let (name, epoch) = (names[n], epochs[n]);
                if silent[n] {
                    return answer(&format!("{name}={n} timeout"));
                }
                let others = size - 1;
                let master = format!("10.0.0.{}:6379", epoch % 3);
                answer(&format!("{name}={n} master {master} epoch={epoch} others={others}"))
            }).collect();
            machine.learn(&answers);
            if let Ok(master) = machine.decide(&answers) {
                let epoch = master.epoch.unwrap();
                prop_assert!(epoch >= last, "{epoch} after {last}: {answers:?}");
                last = epoch;
            }
        }
    }

    #[test]
    fn a_majority_of_reset_sentinels_is_followed(
        (before, after) in (1_u64..1_000).prop_flat_map(|before| (Just(before), 0..before)),
        with_new_ids in any::<bool>(),
        size in prop_oneof![Just(1_usize), Just(3), Just(4), Just(5), Just(7)],
        last in any_answer(),
    ) {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let list = names[..size].iter().map(|s| Address::new(s, 26379).unwrap()).collect();
        let mut machine = Discovery::new(list);
        let round = |count: usize, epoch, from: usize| -> Vec<Answer> {
            names[..count].iter().zip(from..).map(|(name, id)| {
                let facts = format!("epoch={epoch} others={}", size - 1);
                answer(&format!("{name}=i{id} master 10.0.0.{from}:6379 {facts}"))
            }).collect()
        };
        prop_assert!(machine.decide(&round(size, before, 1)).is_ok());
        let mut answers = round(size / 2 + 1, after, if with_new_ids { 50 } else { 1 });
        if size > 1 {
            let mut last = answer(&last);
            last.from = Address::new(names[size - 1], 26379).unwrap();
            answers.push(last);
        }
        machine.learn(&answers);
        let decided = machine.decide(&answers);
        prop_assert_eq!(decided.map(|m| m.epoch), Ok(Some(after)));
    }

    #[test]
    fn only_a_majority_decides(lines in proptest::collection::vec(any_answer(), 1..7)) {
        let answers: Vec<_> = lines.iter().map(|l| answer(l)).collect();
        let list = ["a", "b", "c"].map(|s| Address::new(s, 26379).unwrap());
        if let Ok(master) = Discovery::new(list.to_vec()).decide(&answers) {
            let mut namers: Vec<_> = answers
                .iter()
                .filter_map(|a| match &a.reply {
                    SentinelReply::Master { at, facts, .. } if *at == master.at => {
                        let epoch = facts.as_ref().map(|f| f.epoch);
                        (epoch.is_none() || epoch == master.epoch).then_some(&a.from)
                    }
                    _ => None,
                })
                .collect();
            namers.sort();
            namers.dedup();
            prop_assert!(namers.len() >= 2, "{master:?} named by {namers:?}");
        }
    }
}
