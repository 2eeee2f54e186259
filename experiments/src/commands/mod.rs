//! The commands, one file each.

pub(crate) mod bench;
pub(crate) mod calibrate;
pub(crate) mod compare;
pub(crate) mod diff;
pub mod dispatch;
pub(crate) mod doctor;
pub(crate) mod faults;
pub(crate) mod hangs;
pub(crate) mod launch;
pub(crate) mod machines;
pub(crate) mod plan;
pub(crate) mod predict;
pub(crate) mod report;
pub(crate) mod scale;
pub(crate) mod shell;
pub(crate) mod show;
pub(crate) mod simulate;
pub(crate) mod train;
pub(crate) mod triage;
pub(crate) mod validate;
pub(crate) mod verify;
pub(crate) mod why;
