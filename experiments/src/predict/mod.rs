//! Collectives on virtual time: the machine, where the time went, and traces of it.

pub mod critical_path;
pub mod machine;
pub mod trace;
