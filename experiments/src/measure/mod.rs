//! Collectives on real time, every result held against the exact reference.

pub mod bench;
#[cfg(feature = "cuda")]
pub mod gpus;
pub mod inputs;
pub mod machine_limits;
pub mod ranks;
pub mod statistics;
