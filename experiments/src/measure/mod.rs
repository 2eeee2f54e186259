//! Collectives on real time, with every result compared with the exact reference.

pub mod bench;
#[cfg(feature = "cuda")]
pub mod gpus;
pub mod inputs;
pub mod machine_limits;
pub mod ranks;
pub mod statistics;
pub mod this_machine;
