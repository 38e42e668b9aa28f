//! The commands that our user may send, where `ACL DRYRUN` is not allowed: each is sent in a form
//! that changes nothing. A server checks rights before everything else.

use super::super::facts::{COMMANDS, Read};
use super::conn::{Conn, Tried};

/// Harmless forms of commands that could change something: with a condition that is false, with too
/// many arguments, or as a script that cannot be compiled.
const HARMLESS: &[(&str, &str)] = &[
    ("SET palisade:doctor x", "SET palisade:doctor x XX"),
    ("HSET palisade:doctor x x", "HSET palisade:doctor x x x"),
    ("SCRIPT LOAD x", "SCRIPT LOAD )"),
];

/// Sends every command of [`COMMANDS`]; the refusals among the answers.
pub(super) async fn commands(conn: &Conn) -> Read<Vec<(String, Option<String>)>> {
    let sent = COMMANDS.iter().map(|command| async move {
        let harmless = HARMLESS.iter().find(|(real, _)| real == command);
        conn.try_out(harmless.map_or(command, |(_, form)| form)).await
    });
    let mut all = Vec::new();
    for (command, tried) in COMMANDS.iter().zip(futures_util::future::join_all(sent).await) {
        match tried {
            Tried::Allowed => all.push(((*command).to_owned(), None)),
            Tried::Refused(why) => all.push(((*command).to_owned(), Some(why))),
            Tried::Silent(why) => return Read::Failed(why),
        }
    }
    Read::Got(all)
}
