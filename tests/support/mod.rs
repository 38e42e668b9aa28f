//! What several test programs share. Each uses a part of it.
#![allow(dead_code, unreachable_pub, missing_docs)]
// Of the features of the library some are none of the program's package.
#![allow(unexpected_cfgs)]
// Helpers keep one shape, whether a test needs all of it or not.
#![allow(clippy::unused_self, clippy::unused_async)]

pub mod candidate;
pub mod contract;
pub mod example;
pub mod group;
pub mod idem;
pub mod proxy;
pub mod server;

/// The repository, from whichever package of it the test belongs to.
pub fn root() -> &'static std::path::Path {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_root = |dir: &&std::path::Path| dir.join("sentinel-conf").is_dir();
    here.ancestors().find(is_root).expect("the folder with sentinel-conf")
}
