//! Measured runs of collectives, physical parameters fitted to them, and the errors of predictions.
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
//!
//! ```
//! use allfold_validation::runs;
//!
//! let text = r#"{"collective": "all_reduce", "ranks": 8, "dtype": "float", "system": "mine",
//!                "rows": [{"bytes": 1048576, "time_us": 50.0, "algbw_gbps": 20.97, "busbw_gbps": 36.70}]}"#;
//! let runs = runs::parse("mine", text)?;
//! assert_eq!((runs[0].ranks, runs[0].rows[0].bytes), (8, 1 << 20));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod bootstrap;
pub mod cross_validation;
pub mod draw;
pub mod file;
pub mod fit;
pub mod least_squares;
pub mod predict;
pub mod prepare;
pub mod published_scores;
pub mod repeatability;
pub mod runs;
pub mod scaling_tables;
pub mod score;
mod settings;
pub mod spread;
pub mod systems;
pub mod tables;
pub mod why;

#[cfg(test)]
mod tests;
