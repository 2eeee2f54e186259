//! The parts of the report, one file each. A part that has no records is left out.

mod all;
mod compare;
mod measured;
mod part;
mod predicted;
mod proofs;
mod scaling;
mod timeline;
mod training;

pub use all::all;
