//! `soak`: runs simulations with many seeds on all cores. Prints the history of the first seed that
//! breaks a rule.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use sim::soak::{Soak, story};
use sim::{Scene, Tamper};

/// Runs the real library on simulated nodes, networks, clocks and processes. The same seed always
/// gives exactly the same history.
#[derive(Parser)]
struct Args {
    /// Number of seeds.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Run only this seed, and print its history.
    #[arg(long)]
    reproduce: Option<u64>,
    /// Only plans of this scene with a cluster, as `ThereAndBack`.
    #[arg(long)]
    scene: Option<String>,
    /// Number of threads. By default, one for each core.
    #[arg(long)]
    jobs: Option<usize>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let named = |scene: &Scene| args.scene.as_ref() == Some(&format!("{scene:?}"));
    let forbidden = [Scene::BrokenOffMoves, Scene::TakeoversForNewcomers];
    let scene = Scene::CLUSTERS.into_iter().chain(forbidden).find(named);
    assert!(args.scene.is_none() || scene.is_some(), "no such scene: {:?}", Scene::CLUSTERS);
    let tamper = scene.map(Tamper::Scene);
    if let Some(seed) = args.reproduce {
        let reported = story(seed, tamper);
        print!("{reported}");
        return if reported.contains("BROKEN") { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let bar = ProgressBar::new(args.seeds);
    let style = "{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left";
    bar.set_style(ProgressStyle::with_template(style).expect("a constant that is well-formed"));
    let started = Instant::now();
    let sum = Soak {
        first: args.first,
        seeds: args.seeds,
        jobs: args.jobs.unwrap_or(cores),
        prepare: &|| {},
        tick: &|| bar.inc(1),
        step: 1,
        tamper,
    }
    .run();
    bar.finish_and_clear();
    let per_second = sum.seeds as f64 / started.elapsed().as_secs_f64();
    if let Some(failure) = &sum.failure {
        print!("{}", story(failure.seed, tamper));
        let of = args.scene.map(|scene| format!(" --scene {scene}")).unwrap_or_default();
        println!("again: make soak ARGS='--reproduce {}{of}'", failure.seed);
    }
    let violations = u32::from(sum.failure.is_some());
    println!(
        "{{\"seeds\":{},\"violations\":{violations},\"seeds_per_s\":{per_second:.0}}}",
        sum.seeds
    );
    if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
