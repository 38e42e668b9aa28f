//! Settings from flags, the environment and a file.

use crate::ground::{Ground, Run, palisade};
use crate::support::server::free_port;

#[test]
fn flags_come_before_the_environment_and_that_before_the_file() {
    let ground = Ground::new();
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let file = ground.file("palisade.toml");
    std::fs::write(&file, format!("node = [{:?}]\nttl = \"3s\"\n", ground.url())).unwrap();
    let run = |env: &[(&str, &str)], args: &[&str]| {
        let mut command = palisade();
        command.envs(env.iter().copied()).args(args).args(["--", "true"]);
        Run::of(&command.output().unwrap())
    };
    let path = file.to_str().unwrap();
    assert_eq!(run(&[], &["lock", "a", "--config", path]).code, 0);
    assert_eq!(run(&[("PALISADE_CONFIG", path)], &["lock", "a"]).code, 0);
    let both = [("PALISADE_CONFIG", path), ("PALISADE_NODE", &*nobody)];
    assert_eq!(run(&both, &["lock", "a"]).code, 69);
    assert_eq!(run(&both, &["lock", "a", "--node", &ground.url()]).code, 0);
    // What is wrong is named, with where it is.
    std::fs::write(&file, "nodes = []\n").unwrap();
    let odd = run(&[], &["lock", "a", "--config", path]);
    assert_eq!(odd.code, 64);
    assert!(odd.err.contains("nodes") && odd.err.contains("palisade.toml"), "{}", odd.err);
    assert_eq!(run(&[], &["lock", "a", "--config", "/no/such/file"]).code, 64);
}
