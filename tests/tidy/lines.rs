//! Counts the lines of code that a user of each package writes: in the package's example, the lines
//! between the marks [`BEGIN`] and [`END`]. The README of the package must state this number.

use std::fs;

use crate::root;

struct Example {
    path: &'static str,
    /// Maximum number of lines between the marks.
    limit: usize,
    /// Texts that may occur only between the marks.
    glue: &'static [&'static str],
    readme: &'static str,
}

const CONSUMER: &[&str] = &[
    "use palisade",
    "idempotency(",
    "Consumer::builder",
    "consumer.run",
    "message.json",
    "book(&",
];

const EXAMPLES: &[Example] = &[
    Example {
        path: "adapters/palisade-lapin/examples/orders.rs",
        limit: 12,
        glue: CONSUMER,
        readme: "adapters/palisade-lapin/README.md",
    },
    Example {
        path: "adapters/palisade-nats/examples/orders.rs",
        limit: 13,
        glue: CONSUMER,
        readme: "adapters/palisade-nats/README.md",
    },
    Example {
        path: "adapters/palisade-kafka/examples/orders.rs",
        limit: 12,
        glue: CONSUMER,
        readme: "adapters/palisade-kafka/README.md",
    },
    Example {
        path: "adapters/palisade-streams/examples/orders.rs",
        limit: 12,
        glue: CONSUMER,
        readme: "adapters/palisade-streams/README.md",
    },
    Example {
        path: "adapters/palisade-tower/examples/orders.rs",
        limit: 8,
        glue: &["use palisade_tower", "idempotency(", "Layer::new", "Scope::", "once.finish"],
        readme: "adapters/palisade-tower/README.md",
    },
    Example {
        path: "adapters/palisade-sqlx/examples/inbox.rs",
        limit: 6,
        glue: &["palisade_sqlx", "inbox::"],
        readme: "adapters/palisade-sqlx/README.md",
    },
];

const NUMBERS: [&str; 14] = [
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen",
];

/// Marks in an example, before and after lines that a user of the library writes.
const BEGIN: &str = "// Begin of the lines that a user of the library writes.";
const END: &str = "// End of the lines that a user of the library writes.";

/// Returns the lines of an example between the marks, and the lines outside. Comments and empty
/// lines are left out.
fn split(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut inside, mut outside, mut open) = (Vec::new(), Vec::new(), false);
    for line in text.lines().map(str::trim) {
        match line {
            BEGIN | END => {
                assert_ne!(open, line == BEGIN, "marks come in turn: {line}");
                open = !open;
            }
            _ if line.is_empty() || line.starts_with("//") => {}
            _ if open => inside.push(line),
            _ => outside.push(line),
        }
    }
    assert!(!open, "the last mark is an end");
    (inside, outside)
}

#[test]
fn a_user_writes_as_few_lines_as_each_readme_says() {
    for Example { path, limit, glue, readme } in EXAMPLES {
        let text = fs::read_to_string(root().join(path)).expect("an example");
        let (inside, outside) = split(&text);
        assert!((1..=*limit).contains(&inside.len()), "{path}: {} lines", inside.len());
        for word in *glue {
            assert!(inside.iter().any(|line| line.contains(word)), "{path}: no {word} in it");
            let beside = outside.iter().find(|line| line.contains(word));
            assert!(beside.is_none(), "{path}: not between the marks: {beside:?}");
        }
        let says = format!("{} of its lines", NUMBERS[inside.len()]);
        let readme_text = fs::read_to_string(root().join(readme)).expect("a README");
        assert!(readme_text.contains(&says), "{readme} does not say: {says}");
    }
}

#[test]
fn a_line_beside_the_marks_is_seen() {
    let text = format!("use a;\n{BEGIN}\nlet b = 1;\n\n// why\nlet c = 2;\n{END}\nlet d = 3;\n");
    assert_eq!(split(&text), (vec!["let b = 1;", "let c = 2;"], vec!["use a;", "let d = 3;"]));
    for bad in [END.to_owned(), BEGIN.to_owned(), format!("{BEGIN}\n{BEGIN}\n")] {
        assert!(std::panic::catch_unwind(|| drop(split(&bad))).is_err(), "{bad}");
    }
}
