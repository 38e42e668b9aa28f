//! Reads the `min-replicas-max-lag` of a server of a group, which bounds the time for which it may
//! grant without acknowledgements, and leaves the script there: it may be the next master.

use std::time::Duration;

use tokio::time::timeout;

use super::news::ask_for_data;
use super::session::Session;
use crate::dial::endpoint::Endpoint;
use crate::sentinel::conn::fields;

pub(crate) async fn max_lag_at(at: &Endpoint, within: Duration) -> Option<Duration> {
    let work = async {
        let wire = Session::dial(at).await.ok()?;
        let at = at.logged("settings").await.ok()?;
        let config = redis::cmd("CONFIG").arg("GET").arg("min-replicas-max-lag").take();
        let answers = wire.ask(&[at.hello(), config]);
        let refused = ask_for_data(&wire);
        let [hello, config] = answers.await.ok()?.try_into().ok()?;
        hello.extract_error().ok()?;
        // L is not kept waiting for the script, which is there when the replica refuses it.
        tokio::spawn(async move {
            let _ = timeout(within, refused?).await;
            Some(wire)
        });
        let seconds = fields(&config)?.get("min-replicas-max-lag")?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    };
    timeout(within, work).await.ok().flatten()
}
