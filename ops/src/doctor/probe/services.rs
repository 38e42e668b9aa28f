//! What is known of services otherwise than by a trial: the table in `services.txt`, which the
//! manual has, too. Its columns are the fields of [`Service`].

use serde::Serialize;

const TABLE: &str = include_str!("services.txt");

/// A service, or a kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Service {
    /// Its name.
    pub name: &'static str,
    /// Texts, separated by a space, that all are in its addresses; empty if addresses do not tell.
    pub hosts: &'static str,
    /// What is expected there: an [`Ability`](super::Ability) as in JSON.
    pub verdict: &'static str,
    /// What it refuses or needs.
    pub says: &'static str,
    /// `measured`, if a probe has tried it, or `read`, with year and month.
    pub basis: &'static str,
}

/// Returns what is known of all services. Of several that fit an address the first one counts.
pub fn services() -> impl Iterator<Item = Service> {
    TABLE.lines().filter_map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, hosts, verdict, says, basis] = cells[..] else { return None };
        Some(Service { name, hosts: hosts.trim_matches('`'), verdict, says, basis })
    })
}

pub(super) fn of(addresses: &str) -> Option<Service> {
    let is_of = |s: &Service| s.hosts.split(' ').all(|host| addresses.contains(host));
    services().filter(|service| !service.hosts.is_empty()).find(is_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_first_service_that_fits() {
        for (address, name) in [
            ("a.serverless.use1.cache.amazonaws.com:6379", "ElastiCache Serverless"),
            ("m.x.ng.0001.use1.cache.amazonaws.com:6379", "ElastiCache, cluster mode off"),
            ("clustercfg.x.memorydb.us-east-1.amazonaws.com:6379", "MemoryDB"),
            ("x.westeurope.redis.azure.net:10000", "Azure Managed Redis"),
        ] {
            assert_eq!(of(address).map(|service| service.name), Some(name), "{address}");
        }
        assert_eq!(of("127.0.0.1:6379"), None);
    }

    #[test]
    fn the_manual_has_the_table() {
        assert_eq!(services().count(), TABLE.lines().count());
        let known = ["works", "works-with", "cannot", "unknown"];
        let dated = |basis: &str| {
            basis.split_once(' ').is_some_and(|(how, _)| ["measured", "read"].contains(&how))
        };
        assert!(services().all(|s| known.contains(&s.verdict) && dated(s.basis)));
        assert!(include_str!("../../../../src/manual/services.md").contains(TABLE));
    }
}
