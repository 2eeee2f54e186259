//! Why a run is slower than its machine allows: the same predictor with one change of the machine or of a setting, against the run.
//!
//! ```text
//! run --> expected time of each size, with its interval
//!    '--> one candidate for each cause and degree --> likelihood of the residuals --> probability of each cause, healthy included
//! ```
//!
//! Residuals are logarithms of measured / predicted. Their covariance has the uncertainty of every parameter between systems, a
//! factor that all rows of a run share, errors that near sizes share, and the noise of each row. So a machine that is 20 % slower
//! than others of its kind is no fault, and a step between two sizes is.

mod candidate;
mod cause;
mod evidence;
mod judge;
#[cfg(test)]
mod tests;
mod tuner;

pub use candidate::Candidate;
pub use cause::SlowCause;
pub use evidence::Evidence;
pub use judge::{Finding, Judge};
pub use tuner::tuner_file;
