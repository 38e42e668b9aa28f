//! What the packages beside the library use of it, of exactly the same version, besides its public
//! interface. Nothing here is promised: it may change with every release.

use redis::{AsyncConnectionConfig, RedisError, RedisResult};

pub use crate::dial::Line;
pub use crate::dial::endpoint::Endpoint;
use crate::dial::frames::{Excess, Limits};
use crate::dial::said::{refusal, said};
pub use crate::shown::Secrets;
use crate::tls;

/// Connects and logs in, for answers of up to 64 MiB. The caller holds the deadline.
///
/// # Errors
/// The server cannot be reached, or refuses the login.
///
/// # Cancellation safety
/// May be dropped; what was opened is closed.
pub async fn open_wide(at: &Endpoint) -> RedisResult<Line> {
    at.dial(AsyncConnectionConfig::new(), Limits::ENTRIES).await
}

/// Returns what the server, or the connection to it, answered, without the login's secrets.
pub fn sentence(e: &RedisError, secrets: &Secrets) -> String {
    match tls::inside::<Excess>(e) {
        Some(excess) => excess.to_string(),
        None => refusal(e, secrets).unwrap_or_else(|| said(e, secrets)),
    }
}
