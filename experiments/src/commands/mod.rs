//! The commands, one file each.

pub mod doctor;
pub mod simulate;
pub mod verify;
