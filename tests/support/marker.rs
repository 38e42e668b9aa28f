//! Reads and writes a server's marker, as the library's own rules parse it.

use palisade::internal::lineage::{Marker, Note};
use palisade::node::spi::{Env as _, SystemEnv};

use super::group::cli;
use super::server::Server;

/// Returns the server's marker.
pub fn marker(server: &Server) -> Marker {
    parsed(&server.cli(&["get", "palisade:generation"]))
}

/// Returns the marker of the server at `host:port`.
pub fn at(addr: &str) -> Marker {
    parsed(&cli(addr, &["get", "palisade:generation"]))
}

fn parsed(text: &str) -> Marker {
    let now = SystemEnv.wall_micros() / 1_000;
    Marker::parse(text.trim(), now).unwrap_or_else(|| panic!("no marker: {text}"))
}

/// Returns the server's note.
pub fn note(server: &Server) -> Note {
    let text = server.cli(&["get", "palisade:note"]);
    Note::parse(text.trim()).unwrap_or_else(|| panic!("no note: {text}"))
}

/// Writes another marker in the place of the server's.
pub fn rewrite(server: &Server, edit: impl FnOnce(&mut Marker)) {
    let mut changed = marker(server);
    edit(&mut changed);
    server.cli(&["set", "palisade:generation", &changed.to_string()]);
}
