//! The epoch of a promotion, as Sentinels of the test tell it.

use std::sync::{Arc, Mutex};

use self::fake::{NAME, View, sentinel};
use super::*;
use crate::Deployment;

#[expect(dead_code, unreachable_pub, reason = "shared with other tests, which use all of it")]
#[path = "../../../tests/support/fake.rs"]
mod fake;

const OLD: &str = "10.0.0.1:6379";
const NEW: &str = "10.0.0.2:6379";

fn old_master(group: &GroupLogin, replica: &str) -> Master {
    Master {
        at: OLD.to_owned(),
        target: group.data.at(OLD),
        replicas: vec![replica.to_owned()],
        without_backlog: false,
        run_id: String::new(),
        epoch: Some(3),
        sentinels: Vec::new(),
        known: 0,
        hand: String::new(),
        evicts: None,
        appends_nothing: false,
        keeps_nothing: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_was_asked_between_two_promotions_is_asked_again() {
    let view = |master: &str, epoch| {
        Arc::new(Mutex::new(View { master: master.to_owned(), epoch, ..View::default() }))
    };
    let views = [view(NEW, 4), view(NEW, 5), view(OLD, 3)];
    let fakes = [('a', 0), ('b', 1), ('c', 2)].map(|(id, i)| sentinel(id, &views[i]));
    let sentinels = fakes.each_ref().map(|fake| fake.at.clone());
    let deployment = Deployment::new().node(format!("sentinel://{}/{NAME}", sentinels.join(",")));
    let access = deployment.access().unwrap();
    let group = access.groups.first().unwrap();
    let master = Master { sentinels: sentinels.to_vec(), known: 3, ..old_master(group, NEW) };
    let of = Handover::new(deployment.clone());
    let promotion = Promotion { of: &of, group, master: &master };
    let asked = |i: usize| fakes[i].received("SENTINEL GET-MASTER-ADDR-BY-NAME");
    let second = async {
        while asked(0) == 0 {
            sleep(LOOK).await;
        }
        let before = asked(2);
        while asked(2) < before + 4 {
            sleep(LOOK).await;
        }
        views[0].lock().unwrap().epoch = 5;
    };
    let until = Instant::now() + Duration::from_secs(300);
    let (epoch, ()) = tokio::join!(promotion.epoch(NEW, until), second);
    assert_eq!(epoch, Ok(Some(5)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_is_accepted_and_not_carried_out_says_how_to_take_it_back() {
    let view = Arc::new(Mutex::new(View { master: OLD.to_owned(), ..View::default() }));
    let asked = sentinel('a', &view);
    let replica = fake::Fake::start(|words| match words {
        ["ROLE"] => fake::array(&["slave", "10.0.0.1", "6379"].map(fake::bulk)),
        words => View::default().answer('r', words),
    });
    let deployment = Deployment::new().node(format!("sentinel://{}/{NAME}", asked.at));
    let access = deployment.access().unwrap();
    let group = access.groups.first().unwrap();
    let (of, master) = (Handover::new(deployment.clone()), old_master(group, &replica.at));
    let promotion = Promotion { of: &of, group, master: &master };
    let able = [asked.at.clone()];
    let why = promotion.promoted(&able, Instant::now()).await.unwrap_err();
    assert_eq!((asked.received("SENTINEL FAILOVER"), replica.received("ROLE")), (1, 1));
    assert!(why.contains("The request stands"), "{why}");
    let (host, port) = asked.at.rsplit_once(':').unwrap();
    let reset = format!("`redis-cli -h {host} -p {port} SENTINEL RESET {NAME}`");
    assert!(why.contains(&reset), "{why}");
}
