//! A call of a collective as the command line has it: its flags, its plan for each size, its table.

pub mod plan;
pub mod sweep;
pub mod table;
