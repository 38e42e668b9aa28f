//! Names that users choose: a lock and an election of the same name have different keys, and no
//! name adds a false line to the log or to the output of the program.

use std::time::Duration;

use palisade::{MemoryNode, Redlock};

fn handle() -> Redlock {
    Redlock::builder().node(MemoryNode::new()).build().expect("a handle")
}

#[tokio::test]
async fn a_lock_is_never_an_election_or_an_idempotency_key() {
    let redlock = handle();
    for name in ["election:boss", "{election:boss}:meta", "idem:pay:k", "{idem:pay:k}:fence"] {
        let e = redlock.mutex(name).build().expect_err(name);
        assert!(e.to_string().contains("use another text"), "{e}");
    }
    let leads = redlock.election("boss").build().unwrap().campaign("v").await.expect("nobody else");
    assert_eq!(leads.resign().await.ok(), Some(()));
    let calls = redlock.idempotency("n").at_most_once().build().unwrap();
    let held = redlock.mutex("{z}").build().expect_err("shares the side keys of `z`");
    assert!(held.to_string().contains("leave out the braces"), "{held}");
    for key in ["{z}", "{z}:meta", "{z}:fence"] {
        let ran = calls.key(key).run(|_| async { Ok::<_, String>(1) }).await;
        assert!(ran.is_ok(), "{key}: {ran:?}");
    }
}

#[tokio::test]
async fn a_name_is_shown_without_what_hides_or_turns_around() {
    let redlock = handle();
    let odd = ['\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{2028}', '\u{3164}'];
    for c in odd {
        let name = format!("order{c}7");
        let held = redlock.mutex(&name).build().unwrap().acquire().await.expect("free");
        let e = redlock.mutex(&name).acquire_timeout(Duration::ZERO).await.expect_err("held");
        let text = format!("{e} {held:?}");
        assert!(e.to_string().contains("order\\u{"), "{e}");
        assert!(!e.to_string().contains(c), "{text:?}");
        let leads =
            redlock.election(&name).build().unwrap().campaign("v").await.expect("nobody else");
        let late =
            redlock.election(&name).acquire_timeout(Duration::from_millis(50)).build().unwrap();
        let e = late.campaign("w").await.expect_err("somebody leads");
        assert!(!e.to_string().contains(c), "{e}");
        drop((held, leads));
        let node = MemoryNode::builder().name(name.as_str()).build();
        let e = Redlock::builder().node(node).build().map(drop).expect_err("shown in each error");
        assert!(e.to_string().starts_with("`node`") && !e.to_string().contains(c), "{e}");
    }
    for c in ['\n', '\r', '\u{1b}', '\0'] {
        let e = redlock.mutex(format!("a{c}FORGED")).build().expect_err("a control character");
        assert!(!e.to_string().contains(c), "{e:?}");
    }
}
