//! Reads the keys of a server in pages (`SCAN`).

use super::Deployment;
use super::gather::conn::Conn;
use super::masters::Master;

const PAGE: usize = 1_000;

pub(super) struct Scan<'a> {
    deployment: &'a Deployment,
    master: &'a Master,
    pattern: Option<String>,
    /// `None` after the last page.
    cursor: Option<String>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(
        deployment: &'a Deployment,
        master: &'a Master,
        pattern: Option<String>,
    ) -> Self {
        Self { deployment, master, pattern, cursor: Some("0".to_owned()) }
    }

    /// With the connection that read the page.
    pub(super) async fn next(&mut self) -> Result<Option<(Conn, Vec<Vec<u8>>)>, String> {
        let Some(cursor) = self.cursor.take() else { return Ok(None) };
        // The time-out covers all requests of a connection.
        let conn = self.master.open(self.deployment).await?;
        let mut command = redis::cmd("SCAN");
        command.arg(cursor).arg("COUNT").arg(PAGE);
        if let Some(pattern) = &self.pattern {
            command.arg("MATCH").arg(pattern);
        }
        let (next, keys): (String, _) = conn.read(&command, "SCAN").await?;
        self.cursor = Some(next).filter(|next| next != "0");
        Ok(Some((conn, keys)))
    }
}

pub(super) fn escaped(prefix: &str) -> String {
    let special = |c: char| "*?[]^\\-".contains(c);
    prefix.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_taken_by_its_letters() {
        assert_eq!(escaped("a*[b]?"), "a\\*\\[b\\]\\?");
    }
}
