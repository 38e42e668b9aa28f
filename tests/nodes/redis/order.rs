//! The server executes a release after the acquire of the same owner. This holds even if the server
//! loses its scripts or the connection breaks while several batches are in progress.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use palisade::{Redlock, TryAcquire};

use super::*;

/// Makes callers acquire and release locks. Some acquires are dropped while they wait.
///
/// Meanwhile a thread sends the bytes `trouble` to the server, with the pause `pause` in between.
/// Returns the number of locks that remain without a holder.
async fn left_behind(trouble: &'static [u8], pause: Duration) -> usize {
    let server = Server::start(&[]);
    let minute = Duration::from_secs(60);
    let built = Redlock::builder().node(fresh(&server)).ttl(minute).max_ttl(minute).build();
    let lock = built.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let (ended, mut wire) = (Arc::clone(&over), UnixStream::connect(server.socket()).unwrap());
    let troubles = std::thread::spawn(move || {
        while !ended.load(Ordering::SeqCst) {
            wire.write_all(trouble).unwrap();
            let _ = wire.read(&mut [0; 64]).unwrap();
            std::thread::sleep(pause);
        }
    });
    let end = Instant::now() + Duration::from_secs(3);
    let callers = (0..64_u32).map(|caller| {
        let lock = lock.clone();
        tokio::spawn(async move {
            for round in 0_u32.. {
                if Instant::now() > end {
                    return;
                }
                let mutex = lock.mutex(format!("n-{caller}-{round}")).build().unwrap();
                let mut asking = Box::pin(mutex.try_acquire());
                if round % 3 == 0 {
                    for _ in 0..=round % 7 {
                        if futures_util::poll!(&mut asking).is_ready() {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                } else if let Ok(TryAcquire::Acquired(guard)) = asking.await {
                    let _ = guard.release().await;
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    troubles.join().unwrap();
    let mut left = usize::MAX;
    // A release that failed is repeated within two seconds. Without the repetition, the lock would
    // remain for a minute.
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        left = server.cli(&["keys", "n-*"]).lines().filter(|l| !l.is_empty()).count();
        if left == 0 {
            break;
        }
    }
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_script_lets_no_release_overtake() {
    let flush = b"SCRIPT FLUSH\r\n";
    assert_eq!(left_behind(flush, Duration::from_millis(3)).await, 0, "locks that nobody holds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_lets_no_release_overtake() {
    let kill = b"CLIENT KILL TYPE normal SKIPME yes\r\n";
    assert_eq!(left_behind(kill, Duration::from_millis(60)).await, 0, "locks that nobody holds");
}
