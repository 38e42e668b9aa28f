//! After `palisade init` and a decision the operator is told which servers have not brought that to
//! their disk yet.

use palisade_ops::in_memory;

use super::*;

#[tokio::test]
async fn a_mark_that_is_in_memory_alone_is_told() {
    for (appends, syncs, why, save) in [
        (
            "no",
            "everysec",
            "has no append-only file: if it crashes before its next snapshot",
            Some("BGSAVE"),
        ),
        (
            "yes",
            "no",
            "may write its append-only file to disk half a minute late (appendfsync no): if its \
             machine loses power before that",
            Some("BGREWRITEAOF"),
        ),
        (
            "yes",
            "everysec",
            "writes its append-only file to disk each second: if its machine loses power within \
             two seconds",
            None,
        ),
        ("yes", "always", "", None),
    ] {
        let server = Server::start(&["--appendonly", appends, "--appendfsync", syncs]);
        let out = palisade(&["init", "--new", "--timeout", "12s", "--node", &server.url()]);
        assert_eq!(out.status.code(), Some(0), "{}", words(&out));
        let (at, port) = (server.addr(), server.port());
        let hand = format!("redis-cli -h 127.0.0.1 -p {port}");
        let save = save.map(|save| format!("; `{hand} {save}` saves it now")).unwrap_or_default();
        let line = format!("{at} {why}, this is lost and has to be done again{save}");
        let is_told = !why.is_empty();
        assert_eq!(unwrapped(&out).contains(&line), is_told, "{}", words(&out));
        assert_eq!(unwrapped(&out).contains("saves it now"), !save.is_empty(), "{}", words(&out));
        assert_eq!(unwrapped(&out).contains("is lost"), is_told, "{}", words(&out));
        let named = in_memory(&lone(&server).timeout(SOON)).await.unwrap();
        assert_eq!(named.iter().any(|one| one.at == at), is_told, "{named:?}");
    }
}

#[tokio::test]
async fn a_mark_is_told_to_be_in_memory_if_that_may_not_be_read() {
    let server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "-config|get"]), "OK");
    let named = in_memory(&lone(&server).timeout(SOON)).await.unwrap();
    assert!(named.iter().any(|one| one.why.contains("appendfsync unknown")), "{named:?}");
}

#[tokio::test]
async fn the_command_that_saves_what_is_in_memory_has_the_socket_and_the_login() {
    let server = Server::start(&["--appendonly", "no"]);
    let path = server.socket().display().to_string();
    assert_eq!(server.cli(&["ACL", "SETUSER", "ops", "on", ">s3cret", "~*", "&*", "+@all"]), "OK");
    let mut settings = palisade::Settings::new([format!("unix://{path}")]);
    settings.username = Some("ops".to_owned());
    settings.password = Some("s3cret".to_owned());
    let named = in_memory(&Deployment::of(settings).timeout(SOON)).await.unwrap();
    let save: Vec<&str> = named.iter().filter_map(|one| one.save.as_deref()).collect();
    assert_eq!(save, [format!("redis-cli -s {path} --user ops --askpass BGSAVE")]);
}
