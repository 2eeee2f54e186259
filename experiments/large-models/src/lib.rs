//! Steps of large language models on many GPUs: their time and memory, predicted, compared with what others measured, and planned.
//!
//! ```text
//! LargeModel   shapes of the network --.
//! Layout       how ranks share it ------+--> TrainingJob --> step time by parts, memory by class
//! Cluster      GPUs and their network --'
//! Framework    the kernels and exchanges of the software that runs it
//! ```

pub mod catalog;
pub mod cluster;
mod exchanges;
pub mod fit;
#[cfg(test)]
mod fixtures;
mod framework;
pub mod goodput;
pub mod interval;
pub mod job;
mod kernels;
pub mod known;
pub mod layout;
pub mod memory;
pub mod model;
pub mod parameters;
pub mod plan;
pub mod rows;
pub mod score;
mod stage;
pub mod step;
#[cfg(test)]
mod tests;
