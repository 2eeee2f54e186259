//! Collectives on real time, every result held against the exact reference.

pub mod bench;
pub mod gpus;
pub mod limits;
pub mod ranks;
pub mod samples;
pub mod statistics;
