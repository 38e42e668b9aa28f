//! Module that `mutants` adds to the copy of the library. It returns whether a change of the
//! library is turned on, and records the changes whose code a test reaches.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::Write as _;
use std::sync::{LazyLock, OnceLock};

/// Number of the mutant (change of the library's code) that is turned on, if any.
static ON: LazyLock<Option<usize>> =
    LazyLock::new(|| std::env::var("MUTANT").ok().and_then(|id| id.parse().ok()));
/// Path of the file that lists the changes of the library (mutants) whose code a test executed.
/// `None` if `MUTANTS_REACHED` is not set: then no list is written.
static REACHED: LazyLock<Option<String>> = LazyLock::new(|| std::env::var("MUTANTS_REACHED").ok());

thread_local! {
    static SEEN: RefCell<HashSet<usize>> = RefCell::default();
}

/// Returns true if the change with this number is turned on. Also records that the current thread
/// has reached the change's code.
pub(crate) fn on(id: usize) -> bool {
    if let Some(file) = &*REACHED {
        let is_new = SEEN.try_with(|seen| seen.borrow_mut().insert(id));
        if is_new.unwrap_or(true) {
            // The thread of a test has the name of this test.
            let thread = std::thread::current();
            let line = format!("{id}\t{}\n", thread.name().unwrap_or_default());
            let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
            let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
            written.expect("the file of what is reached can be written");
        }
    }
    *ON == Some(id)
}

/// Returns the text of a Lua script. If the change (mutant) that this run turns on is in one of the
/// script's files, the text contains this change.
pub(crate) fn script(text: &'static str) -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    let Some((old, new)) = ON.and_then(changed_file) else { return text };
    TEXT.get_or_init(|| {
        assert!(text.contains(old), "the script has the file");
        text.replacen(old, new, 1)
    })
}
