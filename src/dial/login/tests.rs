//! Questions, their answers, and what is sent on open connections, in virtual time.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration as D;

use redis::ErrorKind;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::credentials::CredentialsAnswer;
use super::*;
use crate::env::TokioEnv;
use crate::node::BoxFuture;

const MS: D = D::from_millis(1);

#[derive(Clone, Default)]
struct Asked {
    times: Arc<AtomicU32>,
    fails: Arc<AtomicBool>,
    takes: D,
    ends: Option<D>,
}

impl CredentialsProvider for Asked {
    fn credentials(&self) -> BoxFuture<'_, CredentialsAnswer> {
        Box::pin(async {
            let n = self.times.fetch_add(1, SeqCst);
            sleep(self.takes).await;
            if self.fails.load(SeqCst) {
                return Err("down".into());
            }
            let given = Credentials::new(format!("s3cret-{n}"));
            Ok(self.ends.iter().fold(given, |given, end| given.session_ends(*end)))
        })
    }
}

fn endpoint(provider: &Asked) -> (Endpoint, Arc<AtomicU32>) {
    let at = Endpoint::parse("redis://app:own@h").unwrap().credentials(Arc::new(provider.clone()));
    let at = at.of_node(&(Arc::new(TokioEnv::new()) as Arc<dyn Env>));
    let reports = Arc::<AtomicU32>::default();
    let counted = Arc::clone(&reports);
    at.logins().unwrap().on_failure(move |_| {
        counted.fetch_add(1, SeqCst);
    });
    (at, reports)
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_nobody_awaited_serves_all() {
    let provider = Asked { takes: 300 * MS, ..Asked::default() };
    let (at, _) = endpoint(&provider);
    let gives_up = timeout(100 * MS, at.logged("a")).await;
    assert!(gives_up.is_err());
    sleep(20_000 * MS).await;
    let three = tokio::join!(at.logged("a"), at.logged("b"), at.logged("c"));
    assert!(three.0.is_ok() && three.1.is_ok() && three.2.is_ok());
    assert_eq!(provider.times.load(SeqCst), 1);
    sleep(1_001 * MS).await;
    at.logged("d").await.unwrap();
    assert_eq!(provider.times.load(SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_remembered_and_one_report_for_all_who_ask() {
    let provider = Asked::default();
    provider.fails.store(true, SeqCst);
    let (at, reports) = endpoint(&provider);
    let end = Instant::now() + 60_000 * MS;
    while Instant::now() < end {
        let (one, two) = tokio::join!(at.logged("a"), at.logged("b"));
        assert!(one.is_err() && two.is_err());
        sleep(10 * MS).await;
    }
    let times = provider.times.load(SeqCst);
    assert!((15..=30).contains(&times), "{times}");
    assert_eq!(reports.load(SeqCst), times);
    provider.fails.store(false, SeqCst);
    sleep(5_000 * MS).await;
    at.logged("a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_question_ends_with_its_runtime_and_the_next_is_asked() {
    let provider = Asked { takes: 100 * MS, ..Asked::default() };
    let (at, _) = endpoint(&provider);
    let theirs = at.clone();
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { timeout(10 * MS, theirs.logged("a")).await.is_err() })
    });
    assert!(other.join().unwrap());
    at.logged("a").await.unwrap();
    assert_eq!(provider.times.load(SeqCst), 2);
}

/// Returns what the keeper sends, each command with its time since the start in milliseconds.
async fn kept(
    provider: &Asked,
    for_how_long: D,
    answer: impl Fn(usize) -> RedisResult<Value> + Send + Sync + 'static,
) -> (Vec<(u128, String)>, u32) {
    let (at, reports) = endpoint(provider);
    let (sent, mut all) = mpsc::unbounded_channel();
    let (start, times) = (Instant::now(), AtomicU32::new(0));
    let logged = at.logged("batches").await.unwrap();
    let sends = move |auth: Cmd| {
        let text = String::from_utf8(auth.get_packed_command()).unwrap();
        let words = text.split("\r\n").filter(|w| !w.starts_with(['*', '$']));
        let _ = sent.send((start.elapsed().as_millis(), words.collect::<Vec<_>>().join(" ")));
        let answer = answer(times.fetch_add(1, SeqCst) as usize);
        async { answer }.boxed()
    };
    let keeper = Keeper::new(&logged, Box::new(sends));
    sleep(for_how_long).await;
    drop((keeper, logged));
    let mut got = Vec::new();
    while let Ok(next) = all.try_recv() {
        got.push(next);
    }
    (got, reports.load(SeqCst))
}

#[tokio::test(start_paused = true)]
async fn a_login_follows_at_60_to_80_per_cent_as_the_node_s_own_user() {
    let provider = Asked { ends: Some(100_000 * MS), ..Asked::default() };
    let (sent, reports) = kept(&provider, 170_000 * MS, |_| Ok(Value::Okay)).await;
    assert_eq!(reports, 0);
    let [(first, auth), (second, _)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(auth, "AUTH app s3cret-1 ");
    assert!((60_000..=80_010).contains(first) && (60_000..=80_010).contains(&(second - first)));
}

#[tokio::test(start_paused = true)]
async fn ends_that_are_far_away_or_near_neither_overflow_nor_spin() {
    for far in [D::MAX, D::from_nanos(u64::MAX)] {
        let provider = Asked { ends: Some(far), ..Asked::default() };
        let (sent, _) = kept(&provider, 86_400_000 * MS, |_| Ok(Value::Okay)).await;
        assert_eq!(sent, []);
    }
    let provider = Asked { ends: Some(D::from_nanos(1)), ..Asked::default() };
    let (sent, _) = kept(&provider, 10_000 * MS, |_| Ok(Value::Okay)).await;
    assert!((30..=40).contains(&sent.len()), "{sent:?}");
    let provider = Asked { ends: Some(D::ZERO), ..Asked::default() };
    let ended = endpoint(&provider).0.logged("a").await.map(drop);
    assert!(ended.unwrap_err().to_string().contains("has ended"));
}

#[tokio::test(start_paused = true)]
async fn an_auth_without_an_answer_in_time_or_refused_is_sent_again_and_reported() {
    let provider = Asked { ends: Some(100_000 * MS), ..Asked::default() };
    let answer = |n| match n {
        0 => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        1 => Err(redis::make_extension_error("WRONGPASS".into(), Some("s3cret-2".into()))),
        _ => Ok(Value::Okay),
    };
    let (sent, reports) = kept(&provider, 82_000 * MS, answer).await;
    assert_eq!((sent.len(), reports), (3, 2), "{sent:?}");
    // The connection is over.
    let answer = |_| Err(RedisError::from((ErrorKind::Io, "gone")));
    let (sent, reports) = kept(&provider, 170_000 * MS, answer).await;
    assert_eq!((sent.len(), reports), (1, 1), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn secrets_of_every_login_in_use_are_hidden() {
    let (at, _) = endpoint(&Asked::default());
    let mut in_use = Vec::new();
    for n in 0..4 {
        let one = at.logged("a").await.unwrap();
        assert!(!format!("{one:?}").contains("s3cret"));
        if n != 2 {
            in_use.push(one);
        }
        sleep(1_001 * MS).await;
    }
    at.logged("a").await.unwrap();
    let text = at.secrets().clean("app s3cret-0 s3cret-1 s3cret-3 s3cret-4");
    assert_eq!(text, "*** *** *** *** ***");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_good_serves_new_connections_while_the_provider_fails() {
    let provider = Asked::default();
    let (at, reports) = endpoint(&provider);
    at.logged("a").await.unwrap();
    provider.fails.store(true, SeqCst);
    sleep(2_000 * MS).await;
    let given = at.logged("b").await.unwrap();
    assert_eq!((provider.times.load(SeqCst), reports.load(SeqCst)), (2, 1));
    for _ in 0..60 {
        at.logged("b").await.unwrap().given().unwrap().accepted();
        sleep(1_000 * MS).await;
    }
    let times = provider.times.load(SeqCst);
    assert!(times <= 30, "{times}, as if each connection had been a success of the provider");
    let e = redis::make_extension_error("WRONGPASS".into(), None);
    given.given().unwrap().refused(&at, &e);
    sleep(5_000 * MS).await;
    assert!(at.logged("c").await.is_err(), "the server knows it no more");
}

/// The provider is down in the second half of a session, nearly to its end.
#[tokio::test(start_paused = true)]
async fn pauses_are_short_when_the_end_is_near() {
    for _ in 0..300 {
        let provider = Asked { ends: Some(60_000 * MS), ..Asked::default() };
        let fails = Arc::clone(&provider.fails);
        tokio::spawn(async move {
            sleep(30_000 * MS).await;
            fails.store(true, SeqCst);
            sleep(26_000 * MS).await;
            fails.store(false, SeqCst);
        });
        let (sent, _) = kept(&provider, 60_000 * MS, |_| Ok(Value::Okay)).await;
        assert_eq!(sent.len(), 1, "{sent:?}");
    }
}
