//! Rows of the tables that the benchmarks print.

use std::fmt::Display;
use std::sync::Mutex;

use super::stats::Spread;

/// Heading of columns that was printed last. It is not repeated while the rows have the same
/// columns.
static HEADING: Mutex<String> = Mutex::new(String::new());

/// A row of a printed table, as columns below a heading and as an object of JSON.
#[derive(Default)]
pub(crate) struct Row {
    headings: Vec<String>,
    columns: Vec<String>,
    json: Vec<String>,
}

impl Row {
    /// Adds a text, a number or a boolean. A value with an empty heading is in the JSON only.
    pub(crate) fn value(mut self, heading: &str, name: &str, value: impl Display) -> Self {
        let value = value.to_string();
        let bare = value.parse::<f64>().is_ok() || value.parse::<bool>().is_ok();
        let quote = if bare { "" } else { "\"" };
        self.json.push(format!("\"{name}\":{quote}{value}{quote}"));
        self.column(heading, if bare { 7 } else { 20 }, &value)
    }

    pub(crate) fn figure(self, heading: &str, name: &str, digits: usize, figure: f64) -> Self {
        self.value(heading, name, format_args!("{figure:.digits$}"))
    }

    /// Adds a measured number to the row: its median over the rounds of the benchmark, with its
    /// minimum and maximum.
    pub(crate) fn spread(mut self, heading: &str, name: &str, digits: usize, s: Spread) -> Self {
        let Spread { median, min, max } = s;
        self.json.push(format!(
            "\"{name}\":{median:.digits$},\"{name}_min\":{min:.digits$},\
             \"{name}_max\":{max:.digits$}"
        ));
        let digits = digits.min(2);
        let shown = format!("{median:.digits$} ({min:.digits$}-{max:.digits$})");
        self.column(heading, 19, &shown)
    }

    fn column(mut self, heading: &str, width: usize, value: &str) -> Self {
        if !heading.is_empty() {
            let width = width.max(heading.chars().count());
            self.headings.push(format!("{heading:>width$}"));
            self.columns.push(format!("{value:>width$}"));
        }
        self
    }

    /// Prints the row. If the row's columns differ from those of the row printed before, prints the
    /// heading of the columns first.
    pub(crate) fn print(self, json: bool) {
        if json {
            return println!("{{{}}}", self.json.join(","));
        }
        let mut last = HEADING.lock().expect("no panic");
        let heading = self.headings.join(" ");
        if *last != heading {
            println!("{heading}");
            *last = heading;
        }
        println!("{}", self.columns.join(" "));
    }
}
