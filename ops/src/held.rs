//! Lists the locks and elections that are held on the nodes now. The functions only read (`SCAN`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::Deployment;
use super::gather::conn::Conn;
use super::masters::{Master, find_masters};
use super::scan::{Scan, escaped};
use palisade::FencingToken;
use palisade::election::Leader;
use palisade::error::{ConfigError, Resource};
use palisade::internal::digest;
use palisade::internal::{self, check_prefix, is_ownerless, of_key};
use palisade::node::spi::{Holder, LockKeys, OwnerToken};

const READ: &str = include_str!("lua/held.lua");
/// Number of names in one request. The metadata of this number of names fit into one answer.
const PAGE: usize = 64;

/// The locks and elections that are held on the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldList {
    /// All locks and elections that a node grants to an owner, ordered by name.
    pub held: Vec<Held>,
    /// Number of nodes.
    pub nodes: usize,
    /// Nodes that could not be read, with the reasons. If only these nodes have a name, the name is
    /// not in `held`.
    pub unread: Vec<(String, String)>,
}

/// A lock or an election that has an owner on at least one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The lock or election.
    pub of: Resource,
    /// The owner, in the form of [`LockHolder::owner`](palisade::LockHolder::owner).
    pub owner: String,
    /// Largest fence (last fencing token of the name) on the nodes that grant the name to the
    /// owner. The owner's fencing token is this number or a smaller one.
    pub fence: FencingToken,
    /// Number of nodes that grant the name to the owner. If this is no majority, the lock or
    /// election is not held: an attempt is under way, or a release has not reached every node.
    pub on: usize,
    /// Time until the owner has no majority of the nodes, if the lease is not renewed. Zero if the
    /// owner has no majority now.
    pub remaining: Duration,
    /// The facts that the leader of an election published about itself. `None` for a lock, if the
    /// leader has published nothing yet, or if it published more than 4 KiB.
    pub leader: Option<Leader>,
    /// The reason that was given for a [takeover](palisade::Mutex::take_over) of the lock.
    pub note: Option<String>,
}

/// One node's answer about a name.
#[derive(Clone, Debug)]
struct Seen {
    owner: OwnerToken,
    fence: u64,
    left: Duration,
    meta: Option<Arc<[u8]>>,
}

/// Lists the locks and elections with this prefix that are held on any node now. An empty prefix
/// selects the locks and elections of all handles. The function reads the whole key space of each
/// node in steps (`SCAN`). That takes a while if the key space is large, but blocks no other
/// client. The list contains neither the locks of other libraries' clients nor the locks that are
/// held for reading. Inspect such locks by name.
///
/// # Errors
/// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
///
/// # Cancellation safety
/// The function only reads.
pub async fn held(deployment: &Deployment, prefix: &str) -> Result<HeldList, ConfigError> {
    check_prefix(prefix)?;
    let found = find_masters(deployment).await?;
    let reads = found.iter().map(|(_, master)| async {
        match master {
            Ok(master) => read(deployment, master, prefix).await,
            Err(why) => Err(why.clone()),
        }
    });
    let (nodes, mut all, mut unread) = (found.len(), BTreeMap::new(), Vec::new());
    for ((node, _), read) in found.iter().zip(join_all(reads).await) {
        match read {
            Ok(seen) => {
                for (key, seen) in seen {
                    all.entry(key).or_insert_with(Vec::new).push(seen);
                }
            }
            Err(why) => unread.push((node.clone(), why)),
        }
    }
    let held = all
        .into_iter()
        .filter_map(|(key, seen)| Some(together(of_key(prefix, &key)?, &seen, nodes)));
    Ok(HeldList { held: held.collect(), nodes, unread })
}

/// Combines the answers of the nodes that have a name. `n` is the number of all nodes.
fn together(of: Resource, seen: &[Seen], n: usize) -> Held {
    let by = |owner: OwnerToken| seen.iter().filter(move |s| s.owner == owner);
    // A name is listed only if a node has it, so `seen` is not empty.
    let owner = seen.iter().map(|s| s.owner).max_by_key(|owner| (by(*owner).count(), *owner));
    let owner = owner.unwrap_or(OwnerToken::from_random(0));
    let mut left: Vec<_> = by(owner).map(|s| s.left).collect();
    left.sort_unstable_by(|a, b| b.cmp(a));
    let remaining = left.get(n / 2).copied().unwrap_or_default();
    let fence = by(owner).map(|s| s.fence).max().unwrap_or(0);
    let metas = || by(owner).filter_map(|s| s.meta.clone());
    let (mut leader, mut note) = (None, None);
    if matches!(of, Resource::Election(_)) {
        let read = |meta| {
            let holder = Holder { owner: Some(owner), fence, remaining: None, meta: Some(meta) };
            internal::leader(owner, &holder, remaining)
        };
        leader = metas().filter_map(read).max_by_key(|leader| leader.number);
    } else {
        note = metas().find_map(|meta| String::from_utf8(meta.to_vec()).ok());
    }
    let (fence, on) = (FencingToken::new(fence), left.len());
    Held { of, owner: digest(owner), fence, on, remaining, leader, note }
}

/// Reads the names with this prefix that are held on one server. The name of a lock is its key.
async fn read(
    deployment: &Deployment,
    master: &Master,
    prefix: &str,
) -> Result<BTreeMap<String, Seen>, String> {
    let mut all = BTreeMap::new();
    let mut scan = Scan::new(deployment, master, Some(format!("{}*", escaped(prefix))));
    while let Some((conn, keys)) = scan.next().await? {
        let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
        let keys: Vec<_> = keys.filter(|key| of_key(prefix, key).is_some()).collect();
        for page in keys.chunks(PAGE) {
            let seen = holders(&conn, page).await?;
            all.extend(page.iter().cloned().zip(seen).filter_map(|(key, s)| Some((key, s?))));
        }
    }
    Ok(all)
}

async fn holders(conn: &Conn, page: &[String]) -> Result<Vec<Option<Seen>>, String> {
    let mut command = redis::cmd("EVAL");
    command.arg(READ).arg(3 * page.len());
    for key in page {
        let keys = LockKeys::new(key);
        command.arg(keys.lock()).arg(keys.fence()).arg(keys.meta());
    }
    let found: Vec<Value> = conn.read(&command, "EVAL").await?;
    Ok(found.into_iter().map(seen).collect())
}

fn seen(found: Value) -> Option<Seen> {
    let (owner, fence, left, meta): (Vec<u8>, u64, i64, Vec<u8>) =
        redis::from_redis_value(found).ok()?;
    Some(Seen {
        owner: OwnerToken::parse(&owner).filter(|owner| !is_ownerless(*owner))?,
        fence: Some(fence).filter(|fence| *fence < 1 << 53)?,
        // A script may return a negative number. A negative number must not become a huge unsigned
        // one.
        left: Duration::from_millis(u64::try_from(left).ok()?),
        meta: (!meta.is_empty()).then(|| meta.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_reserved_or_kept_is_not_listed() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let found = |owner: OwnerToken| {
            let parts = [text(owner.as_str()), text("7"), Value::Int(40), text("")];
            seen(Value::Array(parts.to_vec())).is_some()
        };
        assert!(found(OwnerToken::from_random(1)));
        assert!(!found(OwnerToken::reserved_for(1)) && !found(OwnerToken::KEPT));
    }

    fn of(cells: &str) -> Held {
        // A cell has the owner and the seconds until the end of the lease.
        let seen = |cell: &str| Seen {
            owner: OwnerToken::from_random(u128::from(cell.as_bytes()[0])),
            fence: u64::from(cell.as_bytes()[0]),
            left: Duration::from_secs(cell[1..].parse().unwrap()),
            meta: None,
        };
        together(Resource::Lock("l".into()), &cells.split(' ').map(seen).collect::<Vec<_>>(), 3)
    }

    #[test]
    fn the_fence_and_the_end_of_a_lease_follow_from_all_nodes() {
        for (cells, on, left) in
            [("a9 a8 a7", 3, 8), ("a9 a8", 2, 8), ("a9", 1, 0), ("a9 b8 b7", 2, 7), ("a9 b8", 1, 0)]
        {
            let held = of(cells);
            assert_eq!((held.on, held.remaining.as_secs()), (on, left), "{cells}");
        }
        assert_eq!(of("a9 b8 b7").fence, FencingToken::new(u64::from(b'b')));
    }

    #[test]
    fn what_is_no_holder_is_left_out() {
        let text = |text: &str| Value::BulkString(text.into());
        let owner = OwnerToken::from_random(7);
        let good = [text(owner.as_str()), text("9"), Value::Int(5), text("")];
        assert!(seen(Value::Array(good.to_vec())).is_some());
        for (at, odd) in [
            (0, text("classic client's value")),
            (1, text("9007199254740992")),
            (1, text("x")),
            (2, Value::Int(-1)),
            (3, Value::Nil),
        ] {
            let mut parts = good.clone();
            parts[at] = odd;
            let is_there = seen(Value::Array(parts.to_vec()));
            assert_eq!(is_there.is_some(), at == 3, "{at}");
        }
        assert!(seen(Value::Array(Vec::new())).is_none());
    }
}
