//! The answer to `CLUSTER NODES`: how one server of a cluster sees all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::dial::address::Address;
use crate::name::SLOTS;

/// Of a server of a cluster.
pub(crate) type Id = Arc<str>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) id: Id,
    /// `None` if the server that answered does not know it, as it may not know its own.
    pub(super) at: Option<Address>,
    pub(super) epoch: u64,
    /// Of a replica.
    pub(super) master: Option<Id>,
    /// First and last, both included; empty for a replica.
    pub(super) slots: Vec<(u16, u16)>,
    /// The server that answered, and a majority of the masters that it hears, have lost it.
    pub(super) has_failed: bool,
}

/// How one server sees the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub(super) of: Id,
    pub(super) members: Vec<Member>,
    /// Slots of its own some of whose keys it may have given away.
    pub(super) migrating: Vec<u16>,
}

impl View {
    /// Reads an answer to `CLUSTER NODES`. `by_name`: certificates have host names. Returns `None`
    /// if it is no such answer.
    pub fn parse(text: &str, by_name: bool) -> Option<Self> {
        let (mut own, mut members) = (None, Vec::new());
        for line in text.lines().filter(|line| !line.is_empty()) {
            let is = |flag| line.split(' ').nth(2).unwrap_or("").split(',').any(|one| one == flag);
            // Without a master, fewer would look like a majority.
            let member = match Member::parse(line, by_name) {
                None if is("slave") && !is("myself") => continue,
                member => member?,
            };
            if is("myself") {
                own = Some((member.id.clone(), migrating(line)));
            }
            members.push(member);
        }
        let (of, migrating) = own?;
        Some(Self { of, members, migrating })
    }

    pub(super) fn masters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !member.slots.is_empty())
    }

    /// Who has slots.
    pub(super) fn electorate(&self) -> BTreeSet<Id> {
        self.masters().map(|member| member.id.clone()).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.masters().next().is_none()
    }

    pub(super) fn votes(&self) -> bool {
        self.masters().any(|member| member.id == self.of)
    }

    /// By the first slot of a range its last one and its owner. Who has failed owns none: this
    /// server cannot tell who has its slots since.
    pub(super) fn claims(&self) -> BTreeMap<u16, (u16, &Member)> {
        let living = self.masters().filter(|member| !member.has_failed);
        let ranges = living.flat_map(|owner| owner.slots.iter().map(move |range| (range, owner)));
        ranges.map(|((first, last), owner)| (*first, (*last, owner))).collect()
    }

    pub(super) fn own_name(&self) -> String {
        let at = self.members.iter().find(|member| member.id == self.of);
        let at = at.and_then(|member| member.at.as_ref()).map(|at| format!(" ({at})"));
        format!("{}{}", self.of, at.unwrap_or_default())
    }
}

/// `[77->-id]` in the line of the slot's owner.
fn migrating(line: &str) -> Vec<u16> {
    let words = line.split(' ').filter_map(|word| word.strip_prefix('[')?.split_once("->-"));
    words.filter_map(|(slot, _)| slot.parse().ok().filter(|n| usize::from(*n) < SLOTS)).collect()
}

impl Member {
    fn parse(line: &str, by_name: bool) -> Option<Self> {
        let mut words = line.split(' ');
        let mut next = || words.next();
        let (id, at, flags, master) = (next()?, next()?, next()?, next()?);
        let (_ping, _pong, epoch, _link) = (next()?, next()?, next()?, next()?);
        let is = |flag| flags.split(',').any(|one| one == flag);
        // What is migrating is still its owner's.
        let slots = words.filter(|word| !word.starts_with('[') && !word.is_empty());
        let slots = slots.map(|word| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
            (first <= last && usize::from(last) < SLOTS).then_some((first, last))
        });
        let slots = slots.collect::<Option<Vec<_>>>()?;
        let is_id =
            |id: &str| (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
        Some(Self {
            id: Some(id).filter(|id| is_id(id))?.into(),
            at: if is("noaddr") { None } else { address(at, by_name) },
            epoch: epoch.parse().ok()?,
            master: Some(master)
                .filter(|id| is("slave") && is_id(id) && *id != "-")
                .map(Into::into),
            slots: if is("master") { slots } else { Vec::new() },
            has_failed: is("fail"),
        })
    }
}

/// `ip:port@bus`, and since 7.0 `,hostname`, and more fields.
fn address(text: &str, by_name: bool) -> Option<Address> {
    let (at, names) = text.split_once(',').unwrap_or((text, ""));
    let at = at.split('@').next()?;
    let (ip, port) = at.rsplit_once(':')?;
    let name = names.split(',').next().filter(|name| by_name && !name.is_empty());
    Address::new(name.unwrap_or(ip), port.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
a1 127.0.0.1:7001@17001,one.example,shard-id=x myself,master - 0 0 3 connected 0-5460 [77->-b2]
b2 :7002@17002 master,fail? - 0 0 2 connected 5461 5463-10922
c3 fe80::1:7003@17003 slave a1 0 0 3 connected
d4 :0@0 master,noaddr - 0 0 0 disconnected
";

    #[test]
    fn a_view_has_owners_epochs_and_addresses() {
        let view = View::parse(TEXT, false).unwrap();
        assert_eq!(&*view.of, "a1");
        let of = |n: usize| view.members[n].clone();
        assert_eq!((of(0).epoch, of(0).slots), (3, vec![(0, 5460)]));
        assert_eq!(of(0).at.unwrap().to_string(), "127.0.0.1:7001");
        assert_eq!((of(1).at, of(1).slots), (None, vec![(5461, 5461), (5463, 10_922)]));
        assert_eq!(of(2).at.unwrap().to_string(), "[fe80::1]:7003");
        assert_eq!((of(2).master.as_deref(), of(3).at), (Some("a1"), None));
        assert_eq!((view.masters().count(), &view.migrating[..]), (2, &[77][..]));
        let lost = View::parse(&TEXT.replace("fail?", "fail"), false).unwrap();
        assert_eq!([&view, &lost].map(|view| view.claims().len()), [3, 1]);
        // What is migrating is said by its owner alone.
        let other = TEXT.replace("myself,", "").replace("slave", "myself,slave");
        assert!(View::parse(&other, false).unwrap().migrating.is_empty());
        let named = View::parse(TEXT, true).unwrap();
        assert_eq!(named.members[0].at.as_ref().unwrap().to_string(), "one.example:7001");
    }

    #[test]
    fn what_is_no_view_is_refused() {
        let nobody = TEXT.replace("myself,", "");
        let beyond = TEXT.replace("10922", "16384");
        for text in ["", "a1 x", "OK", &nobody, &beyond] {
            assert_eq!(View::parse(text, false), None, "{text}");
        }
        let odd = View::parse(&TEXT.replace("a1 0 0 3 connected", "a1 0"), false).unwrap();
        assert_eq!(odd.members.len(), 3, "a replica's line of another form");
    }
}
