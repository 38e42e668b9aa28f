//! Tests of the fields of the operations' spans. A subscriber in the test program collects the
//! spans.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Once;

use palisade::{Failed, Outcome};
use palisade_cron::{Cron, Job};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use crate::world::{S, World};

type Fields = BTreeMap<String, String>;

/// A span that has ended, and the events inside this span.
#[derive(Clone, Debug, Default)]
struct Ended {
    name: String,
    fields: Fields,
    answers: Vec<Fields>,
    parent: Option<String>,
}

thread_local! {
    static HERE: RefCell<Vec<Ended>> = const { RefCell::new(Vec::new()) };
}

struct Collect;

struct Read<'a>(&'a mut Fields);

impl Visit for Read<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collect {
    fn on_new_span(&self, attrs: &span::Attributes<'_>, id: &span::Id, cx: Context<'_, S>) {
        if attrs.metadata().target() != "palisade::verb" {
            return;
        }
        let span = cx.span(id).expect("it begins");
        let parent = span.parent().map(|parent| parent.name().to_owned());
        let mut new = Ended { name: span.name().to_owned(), parent, ..Ended::default() };
        attrs.record(&mut Read(&mut new.fields));
        span.extensions_mut().insert(new);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, cx: Context<'_, S>) {
        let span = cx.span(id).expect("it is under way");
        if let Some(ended) = span.extensions_mut().get_mut::<Ended>() {
            values.record(&mut Read(&mut ended.fields));
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, cx: Context<'_, S>) {
        if event.metadata().target() != "palisade::verb" {
            return;
        }
        let Some(span) = cx.event_span(event) else { return };
        let mut fields = Fields::new();
        event.record(&mut Read(&mut fields));
        if let Some(ended) = span.extensions_mut().get_mut::<Ended>() {
            ended.answers.push(fields);
        }
    }

    fn on_close(&self, id: span::Id, cx: Context<'_, S>) {
        let span = cx.span(&id).expect("it ends");
        if let Some(ended) = span.extensions_mut().remove::<Ended>() {
            HERE.with_borrow_mut(|all| all.push(ended));
        }
    }
}

/// Collects the spans of this thread from now on.
fn collect() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let all = tracing_subscriber::registry().with(Collect);
        tracing::subscriber::set_global_default(all).expect("the only one of this process");
    });
}

fn ended(name: &str) -> Vec<Ended> {
    HERE.with_borrow(|all| all.iter().filter(|span| span.name == name).cloned().collect())
}

/// Returns one field of the last ended span with this name.
#[track_caller]
fn last(name: &str, field: &str) -> String {
    let all = ended(name);
    let span = all.last().unwrap_or_else(|| panic!("no span `{name}` has ended"));
    span.fields.get(field).unwrap_or_else(|| panic!("no `{field}` in {span:?}")).clone()
}

#[tokio::test(start_paused = true)]
async fn each_verb_of_a_lock_is_a_span_with_token_attempts_and_outcome() {
    collect();
    let world = World::new();
    let redlock = world.redlock();
    let mutex = redlock.mutex("a").acquire_timeout(2 * S).build().unwrap();
    let guard = mutex.acquire().await.unwrap();
    let token = guard.fencing_token().to_string();
    assert_eq!(last("acquire", "of"), "lock \"a\"");
    assert_eq!(last("acquire", "token"), token);
    assert_eq!(last("acquire", "attempts"), "1");
    assert_eq!(last("acquire", "outcome"), "acquired");
    let answers = &ended("acquire")[0].answers;
    assert_eq!(answers.len(), 2, "a majority of three: {answers:?}");
    for answer in answers {
        assert_eq!(answer["answer"], "yes");
        assert!(answer["node"].starts_with("node-"));
        assert!(answer["took_us"].parse::<u64>().is_ok());
    }

    assert!(mutex.try_acquire().await.unwrap().acquired().is_none());
    assert_eq!(last("try_acquire", "outcome"), "taken");
    mutex.acquire().await.unwrap_err();
    assert_eq!(last("acquire", "outcome"), "taken");
    assert!(last("acquire", "attempts").parse::<u32>().unwrap() > 1);
    let _ = tokio::time::timeout(S, mutex.acquire()).await.unwrap_err();
    assert_eq!(last("acquire", "outcome"), "dropped");

    guard.extend().await.unwrap();
    assert_eq!(
        (last("extend", "token"), last("extend", "outcome")),
        (token.clone(), "renewed".into())
    );
    tokio::time::sleep(5 * S).await;
    assert_eq!(
        (last("renew", "token"), last("renew", "outcome")),
        (token.clone(), "renewed".into())
    );
    guard.release().await.unwrap();
    assert_eq!((last("release", "token"), last("release", "outcome")), (token, "released".into()));
    world.cut(true);
    mutex.try_acquire().await.unwrap_err();
    assert_eq!(last("try_acquire", "outcome"), "no_quorum");
    let faults = &ended("try_acquire").last().unwrap().answers.clone();
    assert!(faults.iter().all(|answer| answer["answer"] == "fault"), "{faults:?}");
}

#[tokio::test(start_paused = true)]
async fn campaign_and_resign_are_spans_under_one_term() {
    collect();
    let world = World::new();
    let election = world.redlock().election("e").build().unwrap();
    let leadership = election.campaign("me").await.unwrap();
    let term = leadership.term().to_string();
    assert_eq!(last("campaign", "of"), "election \"e\"");
    assert_eq!(
        (last("campaign", "token"), last("campaign", "outcome")),
        (term.clone(), "won".into())
    );
    // The campaign publishes the leader's value by extending the lease. This extension has a span
    // of its own, inside the span of the campaign.
    assert_eq!(ended("extend")[0].parent.as_deref(), Some("campaign"));
    assert!(election.try_campaign("you").await.unwrap().won().is_none());
    assert_eq!(last("try_campaign", "outcome"), "taken");
    leadership.resign().await.unwrap();
    assert_eq!((last("resign", "token"), last("resign", "outcome")), (term, "resigned".into()));
    assert_eq!(ended("release").last().unwrap().parent.as_deref(), Some("resign"));
}

#[tokio::test(start_paused = true)]
async fn a_call_under_a_key_is_a_span_with_claim_and_completion_in_it() {
    collect();
    let world = World::new();
    let keys = world.redlock().idempotency("pay").at_most_once().build().unwrap();
    let call = keys.key("k").fingerprint("swordfish-request");
    let token = std::cell::Cell::new(String::new());
    let done = call.run(|cx| {
        token.set(cx.fencing_token().to_string());
        async { Ok::<_, Failed>("swordfish-result".to_owned()) }
    });
    assert!(matches!(done.await.unwrap(), Outcome::Executed { .. }));
    let token = token.take();
    for (name, outcome) in [("run", "executed"), ("claim", "granted"), ("complete", "stored")] {
        assert_eq!((last(name, "token"), last(name, "outcome")), (token.clone(), outcome.into()));
        assert!(last(name, "of").contains('k'));
        let parent = ended(name)[0].parent.clone();
        assert_eq!(parent.as_deref(), (name != "run").then_some("run"), "{name}");
    }
    assert_eq!(last("run", "attempts"), "1");
    let again = keys.key("k").run(|_| async { Ok::<_, Failed>(String::new()) }).await.unwrap();
    assert!(matches!(again, Outcome::Replayed(_)));
    assert_eq!(
        (last("run", "outcome"), last("claim", "outcome")),
        ("replayed".into(), "stored".into())
    );
    // No field of a span contains a request or a result.
    HERE.with_borrow(|all| assert!(!format!("{all:?}").contains("swordfish"), "{all:#?}"));
}

#[tokio::test(start_paused = true)]
async fn a_tick_is_a_span() {
    collect();
    let world = World::new();
    let cron = Cron::new(&world.redlock());
    let run = cron.run(Job::new("j", "* * * * * *"), |_| async { Ok::<_, Failed>(()) });
    let _ = tokio::time::timeout(3 * S, run).await.unwrap_err();
    assert_eq!(last("tick", "job"), "j");
    assert_eq!(last("tick", "outcome"), "done");
    assert_eq!(last("tick", "attempts"), "1");
    let ticks: Vec<i64> =
        ended("tick").iter().map(|span| span.fields["tick"].parse().unwrap()).collect();
    assert!(ticks.windows(2).all(|two| two[1] == two[0] + 1), "{ticks:?}");
    assert_eq!(ended("run").last().unwrap().parent.as_deref(), Some("tick"));
}
