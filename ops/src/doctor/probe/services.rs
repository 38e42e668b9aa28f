//! What is known of services otherwise than by a trial. The manual has the same table.

use std::fmt;

use serde::Serialize;

use super::report::Ability;

/// How something became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Tried by a probe.
    Measured,
    /// Read in the service's documentation or in reports of its users.
    Read,
}

/// A service or kind of server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Service {
    /// Its name.
    pub name: &'static str,
    /// All of these texts are in its addresses; empty if its addresses do not tell.
    pub hosts: &'static [&'static str],
    /// What is expected of locks there.
    pub verdict: Ability,
    /// What it refuses or needs.
    pub says: &'static str,
    /// How that became known.
    pub basis: Basis,
    /// Year and month of that.
    pub date: &'static str,
}

const fn read(
    name: &'static str,
    hosts: &'static [&'static str],
    verdict: Ability,
    says: &'static str,
) -> Service {
    Service { name, hosts, verdict, says, basis: Basis::Read, date: "2026-11" }
}

/// The services. Of several that match an address the first one counts.
pub const SERVICES: &[Service] = &[
    Service {
        basis: Basis::Measured,
        ..read(
            "Redis 7.0.15, 8.2.3 and Valkey 9.1.2, own servers",
            &[],
            Ability::Works,
            "nothing is refused",
        )
    },
    read(
        "ElastiCache Serverless",
        &[".serverless.", ".cache.amazonaws.com"],
        Ability::Cannot,
        "no WAIT, only declared keys; one virtual shard, whose replication id says nothing of the \
         data",
    ),
    read(
        "ElastiCache, cluster mode off",
        &[".cache.amazonaws.com"],
        Ability::WorksWith,
        "CONFIG and DEBUG are refused; needs a parameter group with noeviction, TLS, and \
         `?failover_window=…` in the address; with cluster mode on: cannot",
    ),
    read("MemoryDB", &[".memorydb.", ".amazonaws.com"], Ability::Cannot, "always a cluster"),
    read(
        "Azure Managed Redis",
        &[".redis.azure.net"],
        Ability::Cannot,
        "INFO is refused in scripts, no ROLE; a connection ends with its Entra token",
    ),
    read(
        "Azure Cache for Redis",
        &[".redis.cache.windows.net"],
        Ability::Cannot,
        "Redis 6.0, which is too old; retired on 2028-09-30",
    ),
    read(
        "Redis Cloud and Redis Enterprise",
        &[".redis-cloud.com"],
        Ability::Cannot,
        "INFO is refused in scripts, no ROLE, no SELECT; WAIT not everywhere; the proxy hides \
         failovers",
    ),
    read(
        "Memorystore for Redis",
        &[],
        Ability::WorksWith,
        "ACL, CLIENT and CONFIG are refused; min-replicas cannot be set; needs \
         `?failover_window=…`",
    ),
    read(
        "Memorystore for Valkey, cluster mode off",
        &[],
        Ability::Unknown,
        "EVALSHA is listed; CONFIG is refused, CLIENT SETINFO is not listed; as a cluster: cannot",
    ),
    read(
        "Aiven for Valkey",
        &[".aivencloud.com"],
        Ability::WorksWith,
        "CONFIG, ACL, REPLICAOF and FAILOVER are refused; needs `?failover_window=…`",
    ),
    read(
        "DigitalOcean Managed Valkey",
        &[".db.ondigitalocean.com"],
        Ability::WorksWith,
        "needs `valkey_maxmemory_policy` noeviction, set by its API, and `?failover_window=…`",
    ),
    read(
        "Upstash",
        &[".upstash.io"],
        Ability::Unknown,
        "an implementation of its own, which says 6.2; run id and replication id are not known",
    ),
    read(
        "OCI Cache",
        &[".oci.oraclecloud.com"],
        Ability::Unknown,
        "likely to work where it is not sharded; sharded: no EVAL, cannot",
    ),
    read(
        "Alibaba, proxy cluster",
        &[".rds.aliyuncs.com"],
        Ability::Cannot,
        "no WAIT, a proxy before a cluster",
    ),
    read(
        "Dragonfly",
        &[".dragonflydb.cloud"],
        Ability::Cannot,
        "no run id; the replication id is new at each start; only declared keys",
    ),
];

impl Service {
    /// Returns its line in the table of the manual.
    pub fn row(&self) -> String {
        let Self { name, verdict, says, .. } = self;
        format!("| {name} | {verdict} | {says} | {self} |")
    }
}

/// How and when it became known.
impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let basis = match self.basis {
            Basis::Measured => "measured",
            Basis::Read => "read",
        };
        write!(f, "{basis} {}", self.date)
    }
}

pub(super) fn of(addresses: &str) -> Option<&'static Service> {
    let has = |service: &&Service| {
        !service.hosts.is_empty() && service.hosts.iter().all(|host| addresses.contains(host))
    };
    SERVICES.iter().find(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_narrowest_service() {
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
    fn the_manual_has_each_service() {
        let page = include_str!("../../../../src/manual/services.md");
        for service in SERVICES {
            assert!(page.contains(&service.row()), "missing in the manual:\n{}", service.row());
        }
    }
}
