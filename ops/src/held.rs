//! Lists the locks, elections and permits that are held on the nodes now. Only reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;

use super::Deployment;
use super::gather::conn::Conn;
use super::masters::{Master, find_masters};
use super::scan::{Scan, escaped};
use super::script;
use palisade::FencingToken;
use palisade::election::Leader;
use palisade::error::{ConfigError, Resource};
use palisade::internal::digest;
use palisade::internal::{self, check_prefix, is_ownerless, of_key};
use palisade::node::spi::{Holder, LockKeys, OwnerToken};

/// Number of names in one request. The metadata that the holders of these names have stored fit
/// into one answer.
const PAGE: usize = 64;
/// Smaller than `PAGE`, because a semaphore has up to 256 permits.
const SEMAPHORES: usize = 16;

/// The locks, elections and permits that are held on the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldList {
    /// All locks, elections and permits that a node grants to an owner, ordered by name and slot.
    pub held: Vec<Held>,
    /// Number of nodes.
    pub nodes: usize,
    /// Nodes that could not be read, with the reasons. If only these nodes have a name, the name is
    /// not in `held`.
    pub unread: Vec<(String, String)>,
}

/// A lock, an election or a permit that has an owner on at least one node, or a lock that readers
/// hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The lock, the election or the semaphore.
    pub of: Resource,
    /// Slot of the permit; `None` for a lock or an election.
    pub slot: Option<u16>,
    /// Number of readers. A majority of the nodes has at least this number. If fewer nodes have
    /// readers, each of these nodes has at least this number. Zero if one owner holds the name.
    pub readers: usize,
    /// The owner, in the form of [`LockHolder::owner`](palisade::LockHolder::owner). If several
    /// readers hold the lock, one of the readers whose grant ends last on a node.
    pub owner: String,
    /// Largest fence on the nodes that grant the name to the owner. The owner's fencing token is
    /// this number or a smaller one.
    pub fence: FencingToken,
    /// Number of nodes that grant the name to the owner, or have readers. If this is no majority,
    /// the name is not held: an attempt is under way, or a release has not reached every node.
    pub on: usize,
    /// Time until the owner has no majority of the nodes, if the lease is not renewed. If readers
    /// hold the name, the time until no majority has readers. Zero if there is no majority now.
    pub remaining: Duration,
    /// The leader of an election, with the values that it published about itself. `None` for a
    /// lock, if the leader has published nothing yet, or if it published more than 4 KiB.
    pub leader: Option<Leader>,
    /// The reason that an operator gave when the lock was [taken](palisade::Mutex::take_over) from
    /// its holder.
    pub note: Option<String>,
}

/// Key, slot, and true if it is held for reading.
type Thing = (String, Option<u16>, bool);

#[derive(Clone, Debug)]
struct Seen {
    owner: OwnerToken,
    fence: u64,
    left: Duration,
    meta: Option<Arc<[u8]>>,
    slot: Option<u16>,
    readers: usize,
}

/// Lists the locks, elections and permits with this prefix that are held on any node now. An empty
/// prefix selects the names of all handles. The function reads the whole key space of each node in
/// steps (`SCAN`). That takes a while if the key space is large, but blocks no other client. The
/// list does not contain the locks of other libraries' clients.
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
                for (thing, seen) in seen {
                    all.entry(thing).or_insert_with(Vec::new).push(seen);
                }
            }
            Err(why) => unread.push((node.clone(), why)),
        }
    }
    let held = all
        .into_iter()
        .filter_map(|((key, ..), seen)| Some(together(of_key(prefix, &key)?, &seen, nodes)));
    Ok(HeldList { held: held.collect(), nodes, unread })
}

fn together(of: Resource, seen: &[Seen], n: usize) -> Held {
    // Readers hold a lock together.
    let by = |owner| seen.iter().filter(move |s| s.owner == owner || s.readers > 0);
    let owner = seen.iter().map(|s| s.owner).max_by_key(|owner| (by(*owner).count(), *owner));
    let owner = owner.unwrap_or(OwnerToken::from_random(0));
    let mut left: Vec<_> = by(owner).map(|s| s.left).collect();
    left.sort_unstable_by(|a, b| b.cmp(a));
    let remaining = left.get(n / 2).copied().unwrap_or_default();
    let mut counts: Vec<_> = by(owner).map(|s| s.readers).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let readers = counts.get(n / 2).or(counts.last()).copied().unwrap_or_default();
    let slot = seen.first().and_then(|s| s.slot);
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
    Held { of, slot, readers, owner: digest(owner), fence, on, remaining, leader, note }
}

async fn read(
    deployment: &Deployment,
    master: &Master,
    prefix: &str,
) -> Result<BTreeMap<Thing, Seen>, String> {
    let mut all = BTreeMap::new();
    let mut scan = Scan::new(deployment, master, Some(format!("{}*", escaped(prefix))));
    while let Some((conn, keys)) = scan.next().await? {
        let (mut semaphores, mut others) = (Vec::new(), Vec::new());
        for key in keys.into_iter().filter_map(|key| String::from_utf8(key).ok()) {
            match of_key(prefix, &key) {
                Some(Resource::Semaphore(_)) => semaphores.push(key),
                Some(_) => others.push(key),
                None => {}
            }
        }
        let pages = semaphores.chunks(SEMAPHORES).map(|page| (page, 1));
        for (page, is_semaphore) in pages.chain(others.chunks(PAGE).map(|page| (page, 0))) {
            let found = grants(&conn, page, is_semaphore).await?;
            for (key, grants) in page.iter().zip(found) {
                let seen = grants.into_iter().filter_map(seen);
                all.extend(seen.map(|s| ((key.clone(), s.slot, s.readers > 0), s)));
            }
        }
    }
    Ok(all)
}

/// The keys are those of locks, or all of semaphores.
async fn grants(conn: &Conn, page: &[String], is_semaphore: u8) -> Result<Vec<Vec<Value>>, String> {
    let mut command = redis::cmd("EVAL");
    command.arg(script::HELD).arg(3 * page.len());
    for key in page {
        let keys = LockKeys::new(key);
        command.arg(keys.lock()).arg(keys.fence()).arg(keys.meta());
    }
    for _ in page {
        command.arg(is_semaphore);
    }
    conn.read(&command, "EVAL").await
}

fn seen(found: Value) -> Option<Seen> {
    let (owner, fence, left, meta, slot, readers): (Vec<u8>, u64, i64, Vec<u8>, i64, usize) =
        redis::from_redis_value(found).ok()?;
    Some(Seen {
        owner: OwnerToken::parse(&owner).filter(|owner| !is_ownerless(*owner))?,
        fence: Some(fence).filter(|fence| *fence < 1 << 53)?,
        // A negative number must not become a huge unsigned one.
        left: Duration::from_millis(u64::try_from(left).ok()?),
        meta: (!meta.is_empty()).then(|| meta.into()),
        slot: u16::try_from(slot).ok(),
        readers,
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
            seen(Value::Array([&parts[..], &[Value::Int(-1), Value::Int(0)]].concat())).is_some()
        };
        assert!(found(OwnerToken::from_random(1)));
        assert!(!found(OwnerToken::reserved_for(1)) && !found(OwnerToken::KEPT));
    }

    fn of(cells: &str) -> Held {
        // A letter for the owner, and the seconds until the lease ends; a capital letter for that
        // number of readers.
        let seen = |cell: &str| {
            let (letter, number) = (cell.as_bytes()[0], cell[1..].parse().unwrap());
            Seen {
                owner: OwnerToken::from_random(u128::from(letter)),
                fence: u64::from(letter),
                left: Duration::from_secs(number),
                meta: None,
                slot: None,
                readers: if letter.is_ascii_uppercase() { number as usize } else { 0 },
            }
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
    fn readers_count_together_whichever_of_them_ends_last() {
        for (cells, on, readers) in
            [("A9 A8 A7", 3, 8), ("A9 B8 C7", 3, 8), ("A9 B2", 2, 2), ("A9", 1, 9), ("a9", 1, 0)]
        {
            let held = of(cells);
            assert_eq!((held.on, held.readers), (on, readers), "{cells}");
            let left = if on > 1 { readers } else { 0 };
            assert_eq!(held.remaining.as_secs(), left as u64, "{cells}");
        }
    }

    #[test]
    fn what_is_no_holder_is_left_out() {
        let text = |text: &str| Value::BulkString(text.into());
        let owner = OwnerToken::from_random(7);
        let mut good = vec![text(owner.as_str()), text("9"), Value::Int(5), text("")];
        good.extend([Value::Int(-1), Value::Int(0)]);
        assert!(seen(Value::Array(good.clone())).is_some());
        for (at, odd) in [
            (0, text("classic client's value")),
            (1, text("9007199254740992")),
            (1, text("x")),
            (2, Value::Int(-1)),
            (3, Value::Nil),
        ] {
            let mut parts = good.clone();
            parts[at] = odd;
            let is_there = seen(Value::Array(parts));
            assert_eq!(is_there.is_some(), at == 3, "{at}");
        }
        assert!(seen(Value::Array(Vec::new())).is_none());
    }
}
