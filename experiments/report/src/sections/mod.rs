//! The parts of the report, one file each. A part that has no records is left out.

mod accuracy;
mod all;
mod compare;
mod machine;
mod measured;
mod names;
mod part;
mod planned;
mod predicted;
mod predicted_curves;
mod proofs;
mod scaling;
mod scaling_curves;
mod single_runs;
mod timeline;
mod training;
mod triage;
mod validated;

pub use all::all;
pub use measured::plots as measured_plots;
pub use predicted_curves::plots as simulated_plots;
