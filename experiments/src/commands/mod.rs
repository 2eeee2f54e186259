//! The commands, one file each.

pub mod bench;
pub mod doctor;
pub mod report;
pub mod scale;
pub mod show;
pub mod simulate;
pub mod train;
pub mod verify;
