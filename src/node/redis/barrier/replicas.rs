//! The replicas of a server, and which of them have a grant; `WAIT` alone returns a number.
//!
//! `INFO replication` after the `WAIT` shows the offset that each replica has acknowledged: it has
//! the grant if that is at least the master's offset before the `WAIT`. A replica that the
//! Sentinels report and that is not attached lacks it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::super::facts::field;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    host: Box<str>,
    port: u16,
}

impl Place {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        Self { host: host.to_ascii_lowercase().into(), port }
    }

    fn is_ip(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok()
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// If more are attached to the server, their number counts.
    pub(crate) count: u32,
    /// Empty if a setting gives only the number.
    pub(crate) named: BTreeSet<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) at: Place,
    /// It receives each write. A backup tool that only takes a snapshot has another state.
    pub(super) online: bool,
    /// Up to which it has acknowledged.
    pub(super) offset: u64,
}

pub(super) fn attached(info: &str) -> Option<Vec<Attached>> {
    let count: usize = field(info, "connected_slaves")?.parse().ok()?;
    let lines = (0..count).map_while(|n| field(info, &format!("slave{n}")));
    let all: Option<Vec<Attached>> = lines.map(one).collect();
    all.filter(|all| all.len() == count)
}

fn one(line: &str) -> Option<Attached> {
    let part = |name: &str| line.split(',').find_map(|p| p.strip_prefix(name)?.strip_prefix('='));
    Some(Attached {
        at: Place::new(part("ip")?, part("port")?.parse().ok()?),
        online: part("state")? == "online",
        offset: part("offset")?.parse().ok()?,
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) have: u32,
    pub(super) all: u32,
    pub(super) behind: Vec<Place>,
    pub(super) absent: Vec<Place>,
}

impl Count {
    pub(super) fn is_complete(&self) -> bool {
        self.have >= self.all
    }
}

pub(super) fn count(attached: &[Attached], offset: u64, known: &Known) -> Count {
    let has = |a: &&Attached| a.online && a.offset >= offset;
    let have = attached.iter().filter(has).count();
    let behind: Vec<Place> = attached.iter().filter(|a| !has(a)).map(|a| a.at.clone()).collect();
    // The master and the Sentinels may use different host names, which cannot be compared. Then
    // only the number of known replicas counts.
    let comparable = attached.iter().all(|a| a.at.is_ip());
    let is_attached = |place: &Place| attached.iter().any(|a| a.at == *place);
    let named = known.named.iter().filter(|place| comparable && place.is_ip());
    let absent: Vec<Place> = named.filter(|place| !is_attached(place)).cloned().collect();
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let all = number(attached.len() + absent.len()).max(known.count);
    Count { have: number(have), all, behind, absent }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(lines: &[&str]) -> String {
        let lines: Vec<_> =
            lines.iter().enumerate().map(|(n, l)| format!("slave{n}:{l}\r\n")).collect();
        format!("role:master\r\nconnected_slaves:{}\r\n{}", lines.len(), lines.concat())
    }

    fn known(count: u32, named: &[(&str, u16)]) -> Known {
        Known { count, named: named.iter().map(|(host, port)| Place::new(host, *port)).collect() }
    }

    const A: &str = "ip=10.0.0.2,port=6379,state=online,offset=100,lag=0";
    const B: &str = "ip=10.0.0.3,port=6379,state=online,offset=99,lag=1";
    const STRANGER: &str = "ip=10.0.0.9,port=6379,state=online,offset=100,lag=0";
    const PAIR: [(&str, u16); 2] = [("10.0.0.2", 6379), ("10.0.0.3", 6379)];

    fn of(lines: &[&str], known: &Known) -> (u32, u32) {
        let count = count(&attached(&info(lines)).unwrap(), 100, known);
        (count.have, count.all)
    }

    #[test]
    fn each_replica_counts_for_itself() {
        let pair = known(2, &PAIR);
        assert_eq!(of(&[A, &B.replace("99", "100")], &pair), (2, 2));
        assert_eq!(of(&[A, B], &pair), (1, 2));
        assert_eq!(of(&[A], &pair), (1, 2), "one is down");
        assert_eq!(
            of(&[A, STRANGER], &pair),
            (2, 3),
            "one is down, and a stranger is none of them"
        );
        assert_eq!(of(&[A], &known(2, &[])), (1, 2), "no server named them");
        assert_eq!(of(&[], &known(0, &[])), (0, 0));
        let backup = "ip=10.0.0.8,port=0,state=wait_bgsave,offset=0,lag=0";
        assert_eq!(of(&[A, backup], &known(1, &PAIR[..1])), (1, 2));
    }

    #[test]
    fn names_that_only_one_side_has_are_counted() {
        let hosts = known(2, &[("r2.example", 6379), ("r3.example", 6379)]);
        assert_eq!(of(&[A, &B.replace("99", "100")], &hosts), (2, 2));
        let announced = "ip=r2.example,port=6379,state=online,offset=100,lag=0";
        assert_eq!(of(&[announced], &known(1, &PAIR[..1])), (1, 1));
    }

    #[test]
    fn what_cannot_be_read_is_no_list() {
        assert_eq!(attached("role:master\r\n"), None);
        assert_eq!(attached("connected_slaves:1\r\n"), None);
        assert_eq!(attached(&info(&["ip=a,port=x,state=online,offset=1"])), None);
        assert_eq!(attached("connected_slaves:0\r\n"), Some(vec![]));
    }

    #[test]
    fn an_address_is_written_as_people_do() {
        assert_eq!(Place::new("::1", 7).to_string(), "[::1]:7");
        assert_eq!(Place::new("R2.Example", 7).to_string(), "r2.example:7");
    }
}
