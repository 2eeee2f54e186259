//! The commands, one file each.

pub mod bench;
pub mod doctor;
pub mod simulate;
pub mod verify;
