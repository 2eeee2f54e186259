//! A collective call on the command line: its flags, its plan for each size, its table.

pub mod plan;
pub mod plot;
pub mod proved;
pub mod sweep;
pub mod table;
