//! How far simulated collectives can be believed: predictions beside published measurements.
//!
//! ```text
//! runs --> prepare: machine, NCCL's choice for every row --> fit: parameters from some systems
//!                                |                                     |
//!                                '------------> predict: others <------'
//!                                                   |
//!                                     score: factors by band, by rows and by systems
//! ```
//!
//! A run that took part in a fit never counts as validated by it.

pub mod draw;
pub mod file;
pub mod fit;
pub mod folds;
pub mod predict;
pub mod prepare;
pub mod resample;
pub mod score;
pub mod spread;
pub mod systems;
pub mod tables;

#[cfg(test)]
mod tests;
