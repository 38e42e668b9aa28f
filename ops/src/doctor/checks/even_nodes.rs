//! The number of nodes is odd.

use super::super::facts::Facts;
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "even-nodes",
    severity: Severity::Warning,
    title: "an odd number of nodes",
    why: "an even number tolerates no more faults than one node less, needs one more vote for \
          every lock, and can be split into two halves, neither of which is a majority",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let n = facts.groups.len() + facts.nodes.len();
    let read = format!("{n} nodes: a majority is {}", n / 2 + 1);
    if n % 2 == 1 {
        return vec![Finding::fine("nodes", read)];
    }
    let says =
        format!("{n} nodes tolerate the loss of {}, no more than {} would", (n - 1) / 2, n - 1);
    let more = ".node(RedisNode::new(\"redis://<one more box>\")?)    // or leave one out";
    vec![Finding::warning("nodes", says, read).mend([more.to_owned()])]
}

#[cfg(test)]
mod tests {
    use super::super::tests::{broken, fine};

    #[test]
    fn an_even_number_is_told() {
        fine("even-nodes");
        let found = broken("even-nodes", |f| {
            let mut second = f.groups[0].clone();
            second.name = "orders-b".into();
            f.groups.push(second);
        });
        assert_eq!(found.says, "2 nodes tolerate the loss of 0, no more than 1 would");
    }
}
