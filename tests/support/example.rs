//! The programs of the examples, built as they stand.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The example's program, next to the directory of this one. A full `cargo test` has built it; a
/// test run on its own would find yesterday's, so cargo is asked once whether all is fresh.
pub fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    // <target>/<profile>/deps/<this test>
    let this = std::env::current_exe().expect("this program");
    let profile = this.ancestors().nth(2).expect("the profile's directory");
    BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--examples"]).current_dir(super::root());
        cargo.arg("--target-dir").arg(profile.parent().expect("the target directory"));
        // As this test was built, or cargo would build everything anew.
        if cfg!(feature = "sim-bugs") {
            cargo.args(["--workspace", "--exclude", "sim", "--all-features"]);
        } else {
            let with = [("tls", cfg!(feature = "tls")), ("backoff", cfg!(feature = "backoff"))];
            for (feature, _) in with.iter().filter(|(_, on)| *on) {
                cargo.args(["--features", feature]);
            }
        }
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        let out = cargo.output().expect("cargo can be run");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    });
    profile.join("examples").join(name)
}
