//! Tests of a cron job with a real server that refuses the password of the process for some time.

use std::time::Duration;

use palisade::error::Advice;
use palisade::node::RedisNode;
use palisade::{Failed, Redlock};
use palisade_cron::{Cron, Job, Tick};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::server::Server;

const PATIENCE: Duration = Duration::from_secs(60);

/// An operator changes the password on the server, and the process still has the old password.
/// Later the operator restores the old password.
#[tokio::test]
async fn a_process_that_was_refused_for_a_while_is_a_candidate_again() {
    let server = Server::start_with_users(
        "user default on >right ~* &* +@all\nuser admin on >admin ~* &* +@all\n",
        &[],
        ("admin", "admin"),
    );
    let node = RedisNode::builder(server.url()).password("right").build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(Duration::from_secs(2)).build().unwrap();
    let cron = Cron::new(&redlock);
    let mut leading = cron.leading();
    let job = Job::new("job", "* * * * * *").zone("UTC");
    let ran = Notify::new();
    let run = cron.run(job, |_: Tick| async {
        ran.notify_one();
        Ok::<_, Failed>(())
    });
    let passwords = async {
        timeout(PATIENCE, leading.wait_for(Option::is_some)).await.expect("it leads").unwrap();
        // The test waits for a tick first, because `run` would end if the server refused its first
        // request.
        timeout(PATIENCE, ran.notified()).await.expect("a tick is run");
        server.cli(&["acl", "setuser", "default", "resetpass", ">other"]);
        server.cli(&["client", "kill", "user", "default"]);
        let probe = redlock.mutex("probe").build().unwrap();
        let refused = async {
            while probe.try_acquire().await.err().map(|e| e.advice()) != Some(Advice::Misconfigured)
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, refused).await.expect("the node refuses");
        timeout(PATIENCE, leading.wait_for(Option::is_none)).await.expect("it is over").unwrap();
        // During this second, the process tries to become leader again, and the server refuses this
        // too.
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.cli(&["acl", "setuser", "default", "resetpass", ">right"]);
        timeout(PATIENCE, leading.wait_for(Option::is_some)).await.expect("it leads").unwrap();
        ran.notified().await;
        timeout(PATIENCE, ran.notified()).await.expect("ticks are run again");
    };
    tokio::select! {
        ended = run => panic!("{ended:?}"),
        () = passwords => {}
    }
}
