//! What commands share: how they end, what they print and leave, and how ranks and names are written.

pub mod columns;
pub mod common;
pub mod error;
pub mod memory;
pub mod names;
pub mod output;
pub mod progress;
pub mod renamed;
