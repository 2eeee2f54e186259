//! What commands share: how they end, what they print and leave, and how ranks and names are written.

pub mod columns;
pub mod common;
pub mod failure;
pub mod memory;
pub mod names;
pub mod progress;
pub mod renamed;
pub mod session;
