//! Finds servers that keep what was written to them only in memory for now.

use palisade::ConfigError;

use super::Deployment;
use super::masters::find_masters;

/// Returns a sentence for each server without an append-only file: what was written to it is in its
/// memory alone until the next snapshot, and a restart before that takes it away again. Servers
/// that cannot be read are left out.
///
/// # Errors
/// [`ConfigError`] if an address or a setting is invalid.
///
/// # Cancellation safety
/// The function only reads.
pub async fn only_in_memory(deployment: &Deployment) -> Result<Vec<String>, ConfigError> {
    let masters = find_masters(deployment).await?;
    let masters = masters.into_iter().filter_map(|(_, master)| master.ok());
    let sentence = |at: String| {
        format!(
            "{at} has no append-only file: this is in its memory alone until its next snapshot, \
             and a restart before that takes it away again; `BGSAVE` there saves it now"
        )
    };
    let masters = masters.filter(|master| master.without_file);
    Ok(masters.map(|master| sentence(master.at)).collect())
}
