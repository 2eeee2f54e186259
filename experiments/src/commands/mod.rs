//! The commands, one file each.

pub mod bench;
pub mod calibrate;
pub mod data;
pub mod dispatch;
pub mod doctor;
pub mod faults;
pub mod launch;
pub mod machines;
pub mod report;
pub mod scale;
pub mod show;
pub mod simulate;
pub mod train;
pub mod triage;
pub mod validate;
pub mod verify;
