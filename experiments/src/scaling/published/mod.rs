//! Published training throughput compared with predictions from the row of one GPU.
//!
//! ```text
//! one GPU's row --> a step's time --> DDP timeline on the machine --> the rows of 2, 4, 8, .. GPUs
//! ```
//!
//! Nothing is fitted to the tables: the terms' sizes are from elsewhere (`rows`), and every row of more than one GPU counts.

mod rows;
mod run;
mod score;

pub use rows::{DEVICE_VARIATION, JITTER_US};
pub use run::{ScoreOptions, run, term};
