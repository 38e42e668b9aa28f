//! Reads the `min-replicas-max-lag` of a server of a group, which bounds the time for which it may
//! grant without acknowledgements.

use std::time::Duration;

use redis::AsyncConnectionConfig;
use tokio::time::timeout;

use super::session::ask;
use crate::dial::endpoint::Endpoint;
use crate::dial::frames::Limits;
use crate::sentinel::conn::fields;

pub(crate) async fn max_lag_at(at: &Endpoint, within: Duration) -> Option<Duration> {
    let work = async {
        let con = at.dial(AsyncConnectionConfig::new(), Limits::WORDS).await.ok()?;
        let config = redis::cmd("CONFIG").arg("GET").arg("min-replicas-max-lag").take();
        let answer = ask(&con, &config).await.ok()?;
        let seconds = fields(&answer)?.get("min-replicas-max-lag")?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    };
    timeout(within, work).await.ok().flatten()
}
