//! Tests of the settings that `palisade` takes from options, the environment and a file.

use std::process::Command;

use crate::ground::{self, Ground, Run};
use crate::support::server::{Server, free_port};

/// On a busy machine a server replies late, and these tests are not about that.
fn palisade() -> Command {
    let mut command = ground::palisade();
    command.env("PALISADE_NODE_DEADLINE", "1s");
    command
}

#[test]
fn flags_come_before_the_environment_and_that_before_the_file() {
    let ground = Ground::new();
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let file = ground.file("palisade.toml");
    std::fs::write(&file, format!("urls = [{:?}]\nttl = \"3s\"\n", ground.url())).unwrap();
    let run = |env: &[(&str, &str)], args: &[&str]| {
        let mut command = palisade();
        command.envs(env.iter().copied()).args(args).args(["--", "true"]);
        Run::of(&command.output().unwrap())
    };
    let path = file.to_str().unwrap();
    assert_eq!(run(&[], &["lock", "a", "--config", path]).code, 0);
    assert_eq!(run(&[("PALISADE_CONFIG", path)], &["lock", "a"]).code, 0);
    let both = [("PALISADE_CONFIG", path), ("PALISADE_URLS", &*nobody)];
    assert_eq!(run(&both, &["lock", "a"]).code, 69);
    assert_eq!(run(&both, &["lock", "a", "--node", &ground.url()]).code, 0);
    // The error names the wrong setting and the file.
    std::fs::write(&file, "node = []\n").unwrap();
    let odd = run(&[], &["lock", "a", "--config", path]);
    assert_eq!(odd.code, 64);
    assert!(odd.err.contains("\"node\"") && odd.err.contains("palisade.toml"), "{}", odd.err);
    assert_eq!(run(&[], &["lock", "a", "--config", "/no/such/file"]).code, 64);
}

#[test]
fn a_file_that_is_not_toml_is_refused_without_the_line_that_has_the_password() {
    let ground = Ground::new();
    let file = ground.file("palisade.toml");
    std::fs::write(&file, "ttl = 3\nurls = \"redis://:S3cret@127.0.0.1\n").unwrap();
    let run = ground.run(&["lock", "a", "--config", file.to_str().unwrap(), "--", "true"]);
    assert_eq!(run.code, 64, "{}", run.err);
    assert!(run.err.contains("palisade.toml: line 2, column"), "{}", run.err);
    assert!(!run.err.contains("S3cret"), "{}", run.err);
}

#[test]
fn what_the_library_reads_from_the_environment_the_program_reads_too() {
    let ground = Ground::new();
    let run = |args: &[&str]| {
        let mut command = palisade();
        command.env("PALISADE_URLS", format!("{}?trust_fresh=true", ground.url())).args(args);
        Run::of(&command.output().unwrap())
    };
    let lock = run(&["lock", "a", "--", "true"]);
    assert_eq!(lock.code, 0, "{}", lock.err);
    let list = run(&["list"]);
    assert_eq!((list.code, &*list.out), (0, "nothing is held\n"), "{}", list.err);
}

#[test]
fn the_command_does_not_inherit_passwords_unless_that_is_asked_for() {
    let ground = Ground::new();
    let print = "echo [$PALISADE_PASSWORD$PALISADE_SENTINEL_PASSWORD$PALISADE_URLS]";
    let run = |args: &[&str]| {
        let login = ground.url().replace("://", "://default:ign0red@");
        let mut command = palisade();
        command.env("PALISADE_URLS", login);
        command.env("PALISADE_PASSWORD", "s3cret").env("PALISADE_SENTINEL_PASSWORD", "s3cret");
        command.args([&["lock", "a"], args, &["-c", print]].concat());
        Run::of(&command.output().unwrap())
    };
    let without = run(&[]);
    assert_eq!((without.code, &*without.out), (0, "[]\n"), "{}", without.err);
    let with = run(&["--pass-secrets"]);
    assert!(with.out.contains("s3cret") && with.out.contains("ign0red"), "{}", with.out);
}

#[test]
fn a_short_ttl_does_not_expect_short_leases_of_all_other_clients() {
    let ground = Ground::new();
    let run = |args: &[&str]| {
        let mut command = palisade();
        command.env("PALISADE_URLS", ground.url()).args(args).args(["--", "sleep", "0.3"]);
        Run::of(&command.output().unwrap())
    };
    // The first client has the default settings. A second client with a shorter ttl must not be
    // reported as one with other settings.
    assert_eq!(run(&["lock", "a"]).code, 0);
    let short = run(&["lock", "a", "--ttl", "5s"]);
    assert_eq!((short.code, &*short.err), (0, ""), "no other settings than before");
    let shorter = run(&["lock", "a", "--ttl", "5s", "--max-ttl", "5s"]);
    assert!(shorter.err.contains("clients differ in max_ttl"), "{}", shorter.err);
}

#[test]
fn an_unknown_variable_is_named_and_a_wait_of_zero_is_one_attempt() {
    let ground = Ground::new();
    let mut command = palisade();
    command.env("PALISADE_TLL", "3s").env("PALISADE_TTL", "1m 30s");
    command.args(["lock", "a", "-w", "0s", "--node", &ground.url(), "--", "true"]);
    let run = Run::of(&command.output().unwrap());
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(run.err.contains("PALISADE_TLL is no setting"), "{}", run.err);
    assert!(!run.err.contains("PALISADE_TTL is no setting"), "{}", run.err);
    let inner =
        format!("{} lock a -w 0s --node {} -- true", env!("CARGO_BIN_EXE_palisade"), ground.url());
    let held = ground.run(&["lock", "a", "--node", &ground.url(), "-c", &inner]);
    assert_eq!(held.code, 75, "one attempt, and no wait: {}", held.err);
    assert!(!held.err.contains("waiting"), "{}", held.err);
}

/// The commands that a program with an even number of nodes prints have this option.
#[test]
fn two_nodes_are_looked_after_once_an_even_number_is_allowed() {
    let servers = [Server::start(&[]), Server::start(&[])];
    let run = |words: &[&str], allowed: Option<&str>| {
        let mut command = palisade();
        command.env("PALISADE_NODE_DEADLINE", "3s");
        command.envs(allowed.map(|value| ("PALISADE_ALLOW_EVEN_NODES", value)));
        command.args(words);
        for server in &servers {
            command.args(["--node", &format!("redis://{}", server.addr())]);
        }
        Run::of(&command.output().unwrap())
    };
    let init = run(&["init", "--new", "--timeout", "12s", "--allow-even-nodes"], None);
    assert_eq!(init.code, 0, "{}", init.err);
    let list = ["idem", "incidents"];
    let refused = run(&list, None);
    assert_eq!(refused.code, 64, "{}", refused.err);
    assert!(refused.err.contains("add --allow-even-nodes"), "{}", refused.err);
    assert_eq!(run(&list, Some("false")).code, 64);
    let allowed = run(&list, Some("true"));
    assert_eq!(allowed.code, 0, "{}", allowed.err);
    let allowed = run(&[&list[..], &["--allow-even-nodes"]].concat(), Some("false"));
    assert_eq!(allowed.code, 0, "{}", allowed.err);
}
