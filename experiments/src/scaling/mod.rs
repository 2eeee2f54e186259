//! Scaling curves: of training runs on this machine, of large networks from layer tables, and of collectives.

pub mod collective;
pub mod curve;
pub mod left_out;
pub mod points;
pub mod published;
pub mod table;
pub mod workload;
