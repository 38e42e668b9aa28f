//! Sets the min-replicas guard on a server, for [`MinReplicas::Apply`]: never weaker than it is.
//!
//! [`MinReplicas::Apply`]: crate::sentinel::guard::MinReplicas::Apply

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, RedisError, Value};
use tokio::time::timeout;

use super::endpoint::Endpoint;
use super::faults;
use crate::sentinel::conn::fields;
use crate::sentinel::guard::{GuardRule, Setting};
use crate::sentinel::words::said;

/// What became of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// Nothing was lacking.
    Stands,
    /// It was set, and will be so after its next restart.
    Set(Setting),
    /// It was set, but the server cannot write it down.
    NotKept(Setting, String),
    /// It said no, with its words and the command to run there.
    Refused(String),
    /// It cannot be reached now; the next look tries again.
    Later(String),
}

/// Sees to a server that may be elsewhere than the session's, and may be a replica.
pub(crate) async fn apply_at(
    at: &Endpoint,
    rule: &GuardRule,
    down_after: Option<Duration>,
    again: bool,
    within: Duration,
) -> Applied {
    let work = async {
        let (info, config) = at.connection();
        let client = Client::open(info).map_err(|e| faults::connecting(&e))?;
        let con = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|e| faults::opening(&e, at.is_tls()))?;
        Ok::<_, crate::error::NodeError>(apply(&con, rule, down_after, again).await)
    };
    match timeout(within, work).await {
        Ok(Ok(applied)) => applied,
        Ok(Err(e)) => Applied::Later(e.to_string()),
        Err(_) => Applied::Later(format!("no answer within {within:?}")),
    }
}

/// Sees to the server of this connection. `again`: it refused before, so have it write its settings
/// down even if they are as asked now.
pub(crate) async fn apply(
    con: &MultiplexedConnection,
    rule: &GuardRule,
    down_after: Option<Duration>,
    again: bool,
) -> Applied {
    let ask = redis::cmd("CONFIG").arg("GET").arg("min-replicas-*").take();
    let has = match run(con, &ask).await {
        Ok(value) => match settings(&value) {
            Some(has) => has,
            None => return Applied::Refused("CONFIG GET min-replicas-* is no answer".to_owned()),
        },
        Err(e) if e.is_io_error() => return Applied::Later(said(&e)),
        // Without knowing what stands there, setting could weaken it.
        Err(e) => return Applied::Refused(refusal("CONFIG GET", &e, asked(rule, down_after))),
    };
    let want = rule.setting(has, down_after);
    let stands = (want.replicas, want.max_lag) == has;
    if stands && !again {
        return Applied::Stands;
    }
    // One at a time: several in one command came with Redis 7.
    let pairs = [
        ("min-replicas-max-lag", want.max_lag, want.max_lag == has.1),
        ("min-replicas-to-write", u64::from(want.replicas), want.replicas == has.0),
    ];
    for (name, value, _) in pairs.iter().filter(|(.., stands)| !stands) {
        let set = redis::cmd("CONFIG").arg("SET").arg(name).arg(value).take();
        match run(con, &set).await {
            Ok(_) => {}
            Err(e) if e.is_io_error() => return Applied::Later(said(&e)),
            Err(e) => return Applied::Refused(refusal("CONFIG SET", &e, want)),
        }
    }
    match run(con, &redis::cmd("CONFIG").arg("REWRITE").take()).await {
        Ok(_) if stands => Applied::Stands,
        // Somebody ran there what was asked for, and wrote it down as was asked for.
        Err(e) if stands && e.code() == Some("NOPERM") => Applied::Stands,
        Ok(_) => Applied::Set(want),
        Err(e) => {
            let words = format!(
                "CONFIG REWRITE refused ({}), so the guard ends with this server's next restart; \
                 write {want} into the file it starts with",
                said(&e)
            );
            if stands { Applied::Refused(words) } else { Applied::NotKept(want, words) }
        }
    }
}

/// As set where nothing is known.
fn asked(rule: &GuardRule, down_after: Option<Duration>) -> Setting {
    rule.setting((0, 0), down_after)
}

fn refusal(what: &str, e: &RedisError, want: Setting) -> String {
    format!(
        "{what} refused ({}); allow this user +config|get +config|set +config|rewrite, or run \
         there: CONFIG SET {want} and then CONFIG REWRITE",
        said(e)
    )
}

async fn run(con: &MultiplexedConnection, cmd: &Cmd) -> Result<Value, RedisError> {
    con.clone().send_packed_command(cmd).await.and_then(Value::extract_error)
}

fn settings(value: &Value) -> Option<(u32, u64)> {
    let all = fields(value)?;
    let number = |name: &str| all.get(name)?.parse::<u64>().ok();
    Some((u32::try_from(number("min-replicas-to-write")?).ok()?, number("min-replicas-max-lag")?))
}
