//! What is counted and what spans say, as a program that collects both sees it.
#![allow(clippy::float_cmp, reason = "what is compared are whole numbers")]

mod counts;
mod recorder;
mod spans;
mod table;
mod world;
