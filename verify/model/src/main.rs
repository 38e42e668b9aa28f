//! Explores all worlds, or those whose names contain the first argument, up to a number of
//! states that is the second. A violation is printed with the
//! shortest history that leads to it, one event a line.

use std::process::ExitCode;

/// So that no world takes more than a minute.
const MOST: usize = 6_000_000;

fn main() -> ExitCode {
    let only = std::env::args().nth(1).unwrap_or_default();
    let most = std::env::args().nth(2).and_then(|most| most.parse().ok()).unwrap_or(MOST);
    let (mut worlds, mut states, mut violations) = (0, 0, 0);
    for spec in model::worlds::all().iter().filter(|spec| spec.name.contains(&only)) {
        let found = model::explore(spec, most);
        worlds += 1;
        states += found.states;
        let holds = match &found.violation {
            None if found.is_complete => "holds".to_owned(),
            None => "holds in these; not explored to the end".to_owned(),
            Some(violation) => {
                violations += 1;
                format!("BROKEN: {}\n{}", violation.what, violation.history.join("\n"))
            }
        };
        let seconds = found.took.as_secs_f64();
        println!("{:<28} {:>9} states {seconds:>6.1} s  {holds}", spec.name, found.states);
    }
    println!(r#"{{"worlds":{worlds},"states":{states},"violations":{violations}}}"#);
    ExitCode::from(u8::from(violations > 0))
}
