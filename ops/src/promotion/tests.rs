//! The epoch of a promotion, as Sentinels of the test tell it.

use std::sync::{Arc, Mutex};

use self::fake::{NAME, View, sentinel};
use super::*;
use crate::Deployment;

#[allow(dead_code, unreachable_pub)]
#[path = "../../../tests/support/fake.rs"]
mod fake;

const OLD: &str = "10.0.0.1:6379";
const NEW: &str = "10.0.0.2:6379";

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
    let master = Master {
        at: OLD.to_owned(),
        target: group.data.at(OLD),
        replicas: vec![NEW.to_owned()],
        without_backlog: false,
        run_id: String::new(),
        epoch: Some(3),
        sentinels: sentinels.to_vec(),
        known: 3,
        hand: String::new(),
        evicts: None,
        appends_nothing: false,
        keeps_nothing: false,
    };
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
