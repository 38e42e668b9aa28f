//! How a job's records and its lock are called. Nothing else spells them.

use palisade::idempotency::{Call, Idempotency};

use super::request::{DAY, SLOT, slot};
use super::tick;

#[derive(Debug)]
pub(super) struct Records {
    keys: Idempotency,
    id: String,
}

impl Records {
    pub(super) fn new(keys: Idempotency, id: String) -> Self {
        Self { keys, id }
    }

    pub(super) fn tick(&self, at: i64) -> Call {
        // No process can have run the tick before it was due, so that is the birth of its key.
        self.keys.key(format!("{}@{at}", self.id)).created_at(tick::at(at))
    }

    pub(super) fn schedule(&self, quarter: i64, n: u32) -> Call {
        self.keys.key(format!("{}/schedule/{quarter}/{n}", self.id))
    }

    pub(super) fn request(&self, slot: i64) -> Call {
        self.keys.key(format!("{}/request/{slot}", self.id)).created_at(tick::at(slot * SLOT))
    }

    pub(super) fn run(&self, at: i64) -> Call {
        self.keys.key(format!("{}/run/{}", self.id, slot(at))).created_at(tick::at(at))
    }

    pub(super) fn sign(&self, day: i64) -> Call {
        self.keys.key(format!("{}/on-request/{day}", self.id)).created_at(tick::at(day * DAY))
    }
}

/// Joins the names of a [`Cron`](super::Cron) and of its job (cron 1). No two pairs have one id:
/// the first `/` is the one between them.
pub(super) fn id(cron: &str, job: &str) -> String {
    format!("{}/{job}", cron.replace('%', "%25").replace('/', "%2F"))
}

/// Takes an id apart again; `None` if it is none.
pub fn cron_names(id: &str) -> Option<(String, &str)> {
    let (cron, job) = id.split_once('/')?;
    Some((cron.replace("%2F", "/").replace("%25", "%"), job))
}

pub(super) fn lock(id: &str) -> String {
    format!("cron:{id}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_pairs_of_names_have_one_id() {
        let names = ["a", "b", "a/b", "/", "a/", "%2F", "a%2Fb", "%", "", "a%", "cron:a"];
        let all: BTreeSet<_> = names.iter().flat_map(|c| names.map(|job| id(c, job))).collect();
        assert_eq!(all.len(), names.len() * names.len());
        assert_eq!(id("cron", "nightly"), "cron/nightly");
        for (cron, job) in names.iter().flat_map(|c| names.map(|job| (*c, job))) {
            assert_eq!(cron_names(&id(cron, job)), Some((cron.to_owned(), job)));
        }
    }
}
