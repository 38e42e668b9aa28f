//! Selection of the small changes of the library that a run of `mutants` tries.

use std::str::FromStr;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::Mutant;

/// Number of changes of the library's code that a run tries without `--shard`.
const USUAL: usize = 100;
/// Number of changes of the library (mutants) that a run draws without `--shard`. It is larger than
/// `USUAL`, because some changes do not build.
const DRAWN: usize = 2 * USUAL;

/// One of `n` equal parts of the list of mutants (changes of the code): the part number `k`,
/// counted from 1.
#[derive(Clone, Copy)]
pub(crate) struct Shard {
    k: usize,
    n: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts =
            text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((k, n)) if 1 <= k && k <= n => Ok(Self { k, n }),
            _ => Err("a shard is k/n with 1 <= k <= n, such as 3/40".to_owned()),
        }
    }
}

/// Shuffles the list of changes by the seed. Takes the shard, or without a shard the first changes
/// of the list. Returns the changes to build, and the maximum number of them to try.
pub(crate) fn draw(mut all: Vec<Mutant>, seed: u64, shard: Option<Shard>) -> (Vec<Mutant>, usize) {
    all.shuffle(&mut StdRng::seed_from_u64(seed));
    let Some(Shard { k, n }) = shard else {
        all.truncate(DRAWN);
        return (all, USUAL);
    };
    (all.into_iter().skip(k - 1).step_by(n).collect(), usize::MAX)
}
