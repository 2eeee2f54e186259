//! Who hung, and why: the dumps that the ranks of a job left, in one model, and the causes of the hang, most likely first.
//!
//! [`DumpReader`] reads Allfold's flight records, the dumps of PyTorch's flight recorder, and logs, into a [`model::DumpedJob`]. [`judge()`] finds
//! the causes, each with the evidence for and against it. A rank without a dump is evidence, too.

pub mod judge;
pub mod model;
mod read;
mod retired;
pub mod seeded;
pub mod slow;
mod tell;
mod timeline;

pub use judge::{CauseKind, HangCause, Hung, Verdict, judge};
pub use read::{DumpReader, starts};
pub use tell::lines;
pub use timeline::{LaneSpan, timeline};
