//! The demo's traffic. Each handle stands for a process of an application.

use std::time::Duration;

use palisade::{Failed, LockGuard, Redlock, RwLock};
use palisade_cron::{Cron, Job, Tick};
use tokio::time::sleep;

/// Runs all traffic of the demo until the future is dropped.
pub(super) async fn run(handles: &[Redlock]) {
    let each = handles.iter().zip(0_u32..).map(|(handle, number)| async move {
        tokio::join!(
            orders(handle, number),
            contend(handle, "ledger", number),
            contend(handle, "warehouse/aisle 7", number + 1),
            read(handle, number),
            upload(handle, number),
            lead(handle, number),
            nightly(handle, number),
        )
    });
    futures_util::future::join_all(each).await;
}

/// Returns a random time of half to one and a half times `ms`.
fn some(ms: u64) -> Duration {
    Duration::from_millis(ms / 2 + rand::random::<u64>() % ms)
}

/// Books an order every second. Now and then the booking is dropped half-way, as if the process had
/// died. The idempotency key of that booking then needs a person's decision.
async fn orders(handle: &Redlock, number: u32) {
    let Ok(keys) = handle.idempotency("orders").at_most_once().build() else { return };
    for n in 1_u32.. {
        sleep(some(900)).await;
        let key = format!("order-{number}-{n:04}");
        let work = keys.key(&*key).run(|_| async {
            sleep(some(700)).await;
            Ok::<_, Failed>(format!("booked {n}"))
        });
        if n % 25 == 7 {
            // Dropping the future in the middle of the work has the effect of a process that dies.
            drop(tokio::time::timeout(Duration::from_millis(250), work).await);
        } else {
            drop(work.await);
        }
    }
}

async fn hold(guard: LockGuard, time: Duration) {
    tokio::select! {
        () = sleep(time) => {}
        () = guard.lost() => {}
    }
    drop(guard.release().await);
}

async fn contend(handle: &Redlock, name: &str, number: u32) {
    sleep(some(400) * number).await;
    loop {
        let mutex = handle.mutex(name).acquire_timeout(Duration::from_secs(30)).build();
        let Ok(mutex) = mutex else { return };
        if let Ok(guard) = mutex.acquire().await {
            hold(guard, some(4_000)).await;
        }
        sleep(some(1_500)).await;
    }
}

/// Holds the read-write lock `prices` for reading, again and again. The first process holds it for
/// writing.
async fn read(handle: &Redlock, number: u32) {
    loop {
        let mutex = handle.mutex("prices").acquire_timeout(Duration::from_secs(30)).build();
        let Ok(lock) = mutex.map(RwLock::from) else { return };
        if number == 0 {
            if let Ok(guard) = lock.write().await {
                hold(guard.into(), some(1_000)).await;
            }
            sleep(some(8_000)).await;
        } else {
            if let Ok(guard) = lock.read().await {
                hold(guard.into(), some(3_000)).await;
            }
            sleep(some(1_200)).await;
        }
    }
}

/// Holds one of the three permits of the semaphore `uploads`, again and again.
async fn upload(handle: &Redlock, number: u32) {
    sleep(some(300) * number).await;
    loop {
        let uploads = handle.semaphore("uploads", 3).acquire_timeout(Duration::from_secs(30));
        let Ok(uploads) = uploads.build() else { return };
        if let Ok(permit) = uploads.acquire().await {
            hold(permit.into(), some(3_000)).await;
        }
        sleep(some(500)).await;
    }
}

/// Campaigns, leads for about half a minute, and resigns. The second process never resigns, as if
/// it hung.
async fn lead(handle: &Redlock, number: u32) {
    let value = format!("10.0.0.{}:8080", number + 1);
    loop {
        let election = handle.election("billing").priority(u8::from(number == 0)).build();
        let Ok(election) = election else { return };
        if let Ok(leadership) = election.campaign(&*value).await {
            tokio::select! {
                () = sleep(some(30_000)) => {}
                () = leadership.lost() => {}
                _ = leadership.asked_to_resign() => {}
            }
            if number == 1 {
                // Without a resignation the other candidates wait until the lease ends, so there is
                // a gap without a leader.
                drop(leadership);
            } else {
                drop(leadership.resign().await);
            }
        }
        sleep(some(2_000)).await;
    }
}

/// Runs a report every ten seconds, on one of the processes. Each seventh run fails.
async fn nightly(handle: &Redlock, number: u32) {
    if number > 1 {
        return;
    }
    let cron = Cron::new(handle).name("cron:report");
    let job = Job::new("report", "*/10 * * * * *").zone("Europe/Zurich");
    let work = cron.run(job, |tick: Tick| async move {
        sleep(some(1_800)).await;
        match tick.unix_seconds() / 10 % 7 {
            0 => Err(Failed::unknown("the printer is out of paper")),
            _ => Ok(()),
        }
    });
    drop(work.await);
}
