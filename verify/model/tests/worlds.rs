//! In the smallest worlds everything holds. `make model` explores all of them.

use model::{explore, worlds};

const SMALL: [&str; 5] =
    ["mutex", "mutex, clocks that differ", "readers and a writer", "two permits", "key, run again"];

#[test]
fn the_smallest_worlds_hold() {
    let small = worlds::all().into_iter().filter(|spec| SMALL.contains(&spec.name));
    let explored = small.map(|spec| {
        let found = explore(&spec, 3_000_000);
        assert!(found.violation.is_none(), "{}: {:#?}", spec.name, found.violation);
        assert!(found.is_complete, "{}: more than {} states", spec.name, found.states);
    });
    assert_eq!(explored.count(), SMALL.len());
}
