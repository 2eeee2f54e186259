//! What crosses crates: conformance, parity, faults, properties; all of it under `tests/tests/`.
//!
//! The Rust in the project's README is compiled and run here:
#![doc = include_str!("../../README.md")]
