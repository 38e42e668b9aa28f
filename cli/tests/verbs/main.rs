//! The commands of `palisade` on real servers: every exit code, and the behaviour that shell
//! scripts rely on.

mod codes;
mod console;
mod cron;
mod ground;
mod idem;
mod kinds;
mod leaders;
mod losses;
mod once;
mod others;
mod output;
mod processes;
mod readers;
mod settings;
#[path = "../../../tests/support/mod.rs"]
mod support;
