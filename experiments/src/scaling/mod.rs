//! Scaling curves: of training on ranks that are there, of large networks from layer tables, of collectives.

pub mod collective;
pub mod curve;
pub mod explain;
pub mod points;
pub mod published;
pub mod table;
pub mod tables;
pub mod workload;
