//! Collectives on virtual time: the simulated machine, where the time is spent, and traces.

pub mod critical_path;
pub mod exchanges;
pub mod machine;
pub mod nccl;
pub mod trace;
