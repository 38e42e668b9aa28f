//! Paths of the example programs.

/// Returns the path of the program of the example with this name.
pub(crate) fn program(example: &str) -> &'static str {
    match example {
        "credentials" => env!("CARGO_BIN_EXE_credentials"),
        "cron_singleton" => env!("CARGO_BIN_EXE_cron_singleton"),
        "crontab_leader" => env!("CARGO_BIN_EXE_crontab_leader"),
        "dns_endpoint" => env!("CARGO_BIN_EXE_dns_endpoint"),
        "election" => env!("CARGO_BIN_EXE_election"),
        "fenced_writer" => env!("CARGO_BIN_EXE_fenced_writer"),
        "metrics" => env!("CARGO_BIN_EXE_metrics"),
        "orders" => env!("CARGO_BIN_EXE_orders"),
        "password_file" => env!("CARGO_BIN_EXE_password_file"),
        "payments" => env!("CARGO_BIN_EXE_payments"),
        "quickstart" => env!("CARGO_BIN_EXE_quickstart"),
        other => panic!("there is no example {other}"),
    }
}
