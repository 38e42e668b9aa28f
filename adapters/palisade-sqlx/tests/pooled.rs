//! Tests of the inbox and of fenced writes through PgBouncer in transaction mode. Many clients
//! share few server connections. Two transactions of one client may use different server
//! connections.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use palisade::idempotency::Context;
use palisade::{Failed, FencingToken, Outcome, Probed};
use palisade_sqlx::{fence, inbox, migrate};
use sqlx::PgConnection;
use sqlx::postgres::PgPool;
use sqlx::{Connection as _, Executor as _};

use crate::pooler::Pooler;
use crate::{Lab, at_least_once, memory};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const CLIENTS: usize = 6;
const KEYS: usize = 25;

/// Runs a statement of the application. Like the statements of this crate, it must not have a name,
/// because several clients share a connection of the pooler.
async fn effect(tx: &mut PgConnection, key: String) -> Result<i64, BoxError> {
    let insert = sqlx::query_scalar("INSERT INTO effects (key) VALUES ($1) RETURNING id");
    Ok(insert.bind(key).persistent(false).fetch_one(tx).await?)
}

async fn book(pool: &PgPool, cx: &Context) -> Result<i64, BoxError> {
    let mut tx = pool.begin().await?;
    let key = cx.key().to_owned();
    let id = inbox::once(&mut tx, cx, |tx| effect(tx, key).boxed()).await?;
    tx.commit().await?;
    Ok(id)
}

async fn clients(pooler: &Pooler) -> Vec<PgPool> {
    join_all((0..CLIENTS).map(|_| pooler.client(2))).await
}

async fn shared(lab: &Lab) -> i64 {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pooled'";
    sqlx::query_scalar(count).fetch_one(&lab.pool).await.expect("a number")
}

#[tokio::test]
async fn each_key_takes_effect_once_though_its_attempts_share_server_connections() {
    for connections in [1, 3] {
        let lab = Lab::new().await;
        let pooler = Pooler::start(&lab.server, connections);
        let clients = clients(&pooler).await;
        // Each attempt uses different palisade nodes. So only the inbox prevents a second effect.
        let attempts = clients.iter().flat_map(|pool| {
            let keys = at_least_once(&memory());
            (0..KEYS).map(move |n| {
                let (pool, keys) = (pool.clone(), keys.clone());
                async move {
                    let run = keys.key(format!("k{n}"));
                    run.run(async move |cx: Context| book(&pool, &cx).await).await
                }
            })
        });
        let ids: Vec<_> = join_all(attempts).await.into_iter().map(Result::unwrap).collect();
        for n in 0..KEYS {
            let of_key: Vec<_> = ids.iter().skip(n).step_by(KEYS).map(Outcome::value).collect();
            assert!(of_key.iter().all(|id| *id == of_key[0] && id.is_some()), "{of_key:?}");
            assert_eq!(lab.effects(&format!("k{n}")).await, 1);
        }
        let used = shared(&lab).await;
        assert!((1..=i64::from(connections)).contains(&used), "{used} of {connections}");
    }
}

#[tokio::test]
async fn a_probe_has_the_answer_of_its_own_key_among_others() {
    let lab = Lab::new().await;
    let pooler = Pooler::start(&lab.server, 2);
    let clients = clients(&pooler).await;
    let keys = memory().idempotency("orders").at_most_once().build().expect("settings");
    // Every second attempt fails before its commit.
    let mut ids = Vec::new();
    for n in 0..KEYS {
        let pool = clients[0].clone();
        let died = keys.key(format!("k{n}")).run(async move |cx: Context| {
            let id = if n % 2 == 0 { book(&pool, &cx).await? } else { 0 };
            Err::<i64, Failed>(Failed::unknown(id.to_string()))
        });
        let Err(palisade::RunError::Handler { failed, .. }) = died.await else { panic!("it ran") };
        ids.push(failed.to_string().parse::<i64>().expect("its row"));
    }
    let asked = clients.iter().cycle().take(10 * KEYS).enumerate().map(|(i, pool)| {
        let (n, prober) = (i % KEYS, inbox::prober::<i64>(pool.clone()));
        // The probe, which looks for the key's effect, needs the `Context` of a handler. So the
        // handler of another call of the same key runs the probe.
        let others = memory().idempotency("orders").at_most_once().build().expect("settings");
        async move {
            let run = others.key(format!("k{n}")).run(async move |cx: Context| {
                // `Some(None)` would not survive its JSON.
                Ok::<_, Failed>(match prober(cx).await {
                    Probed::Found(id) => (true, Some(id)),
                    Probed::NotFound => (true, None),
                    Probed::Unknown => (false, None),
                })
            });
            (n, run.await.expect("it runs").into_value().expect("it ran"))
        }
    });
    // Statements of other clients run at the same time.
    let busy = at_least_once(&memory());
    let others = clients.iter().cycle().take(10 * KEYS).enumerate().map(|(i, pool)| {
        let (call, pool) = (busy.key(format!("other{i}")), pool.clone());
        async move { call.run(async move |cx: Context| book(&pool, &cx).await).await }
    });
    let (answers, others) = futures_util::future::join(join_all(asked), join_all(others)).await;
    assert!(others.iter().all(|done| done.as_ref().is_ok_and(Outcome::is_executed)));
    for (n, answer) in answers {
        assert_eq!(answer, (true, (n % 2 == 0).then_some(ids[n])), "k{n}");
    }
}

#[tokio::test]
async fn the_fence_holds_among_transactions_of_many_clients() {
    let lab = Lab::new().await;
    let stock = "CREATE TABLE stock (id int, fence bigint NOT NULL DEFAULT 0);
                 INSERT INTO stock VALUES (42, 0)";
    lab.pool.execute(sqlx::raw_sql(stock)).await.expect("a table");
    let mutex = memory().mutex("stock:42").build().expect("a name");
    let mut tokens = Vec::new();
    for _ in 0..4 * CLIENTS {
        let guard = mutex.acquire().await.expect("free");
        tokens.push(guard.fencing_token());
        let _ = guard.release().await;
    }
    let newest = *tokens.iter().max().expect("some");
    for connections in [1, 3] {
        let pooler = Pooler::start(&lab.server, connections);
        let clients = clients(&pooler).await;
        let resource = format!("stock 42 by {connections}");
        let write = async |pool: &PgPool, token: FencingToken| {
            let mut tx = pool.begin().await.expect("a transaction");
            if fence::raise(&mut tx, &resource, token).await.expect("it answers").is_err() {
                tx.rollback().await.expect("rolled back");
                return false;
            }
            // Other clients have the time to run statements here.
            tokio::time::sleep(Duration::from_millis(1)).await;
            let sql = "UPDATE stock SET fence = $1 WHERE id = 42 AND fence <= $1";
            let write = sqlx::query(sql).bind(fence::value(token)).persistent(false);
            let done = write.execute(&mut *tx).await.expect("it writes");
            fence::applied(done.rows_affected(), "stock 42", token)
                .expect("what was raised is not overtaken");
            tx.commit().await.expect("committed");
            true
        };
        let reset = sqlx::query("UPDATE stock SET fence = 0");
        reset.execute(&lab.pool).await.expect("written");
        let writes = tokens.iter().zip(clients.iter().cycle()).map(|(t, pool)| write(pool, *t));
        join_all(writes).await;
        let last: i64 = sqlx::query_scalar("SELECT fence FROM stock")
            .fetch_one(&lab.pool)
            .await
            .expect("a row");
        assert_eq!(last, fence::value(newest));
        assert!(!write(&clients[0], tokens[0]).await, "an older one is refused");
        assert!(write(&clients[1], newest).await, "the same one is not");
    }
}

#[tokio::test]
async fn tables_are_made_and_purged_through_the_pooler() {
    let lab = Lab::new().await;
    let drop_all = "DROP TABLE palisade_inbox, palisade_fence";
    lab.pool.execute(drop_all).await.expect("dropped");
    let pooler = Pooler::start(&lab.server, 1);
    let clients = clients(&pooler).await;
    let made = join_all(
        clients.iter().map(async |pool| migrate(&mut pool.acquire().await.expect("one")).await),
    );
    assert!(made.await.into_iter().all(|made| made.is_ok()));
    let keys = at_least_once(&memory());
    for (n, pool) in clients.iter().enumerate() {
        let pool = pool.clone();
        let run = keys.key(format!("k{n}")).run(async move |cx: Context| book(&pool, &cx).await);
        assert!(run.await.expect("it runs").is_executed());
    }
    let over = "UPDATE palisade_inbox SET counts_until = now() - interval '25 hours'";
    lab.pool.execute(over).await.expect("rows");
    let purged = join_all(clients.iter().map(async |pool| {
        let mut conn = pool.acquire().await.expect("one");
        inbox::purge(&mut conn, "orders", 2).await.expect("deleted")
    }));
    assert_eq!(purged.await.iter().sum::<u64>(), CLIENTS as u64);
}

/// The README warns that named statements of two clients collide in a shared connection. If this
/// test fails, they do not collide any more, and the warning is out of date.
#[tokio::test]
async fn a_named_statement_collides_in_a_shared_connection() {
    let lab = Lab::new().await;
    let pooler = Pooler::start(&lab.server, 1);
    let mut refused = Vec::new();
    let clients = clients(&pooler).await;
    for pool in &clients {
        let mut conn = pool.acquire().await.expect("one");
        let mut tx = conn.begin().await.expect("a transaction");
        let named = sqlx::query("SELECT $1::int8").bind(1_i64).fetch_one(&mut *tx).await;
        refused.extend(named.err().map(|e| e.to_string()));
    }
    assert_eq!(refused.len(), CLIENTS - 1, "{refused:?}");
    assert!(refused.iter().all(|e| e.contains("already exists")), "{refused:?}");
    // PgBouncer refuses a client with sqlx's default settings.
    let plain = sqlx::PgConnection::connect(&pooler.url()).await.expect_err("refused");
    assert!(plain.to_string().contains("extra_float_digits"), "{plain}");
}
