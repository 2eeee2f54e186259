//! Collectives on real time, with every result compared with the exact reference.

pub mod bench;
#[cfg(feature = "cuda")]
pub mod gpus;
pub mod inputs;
pub mod machine_limits;
#[cfg(feature = "cuda")]
pub mod nccl;
#[cfg(feature = "cuda")]
mod nccl_call;
#[cfg(feature = "cuda")]
mod nccl_results;
#[cfg(feature = "cuda")]
pub mod near_gpu;
pub mod ranks;
pub mod statistics;
pub mod this_machine;
