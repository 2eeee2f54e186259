//! Mended defects that a test puts back into [`super::Gpu`], to show that the checks find them.

use std::sync::{Mutex, PoisonError};

static SEEDED: Mutex<&[u8]> = Mutex::new(&[]);

/// Puts the given defects back, by their numbers in `docs/GPU.md`, and removes every other.
pub fn seed_defects(defects: &'static [u8]) {
    *SEEDED.lock().unwrap_or_else(PoisonError::into_inner) = defects;
}

/// Whether a test has put a defect back.
pub(super) fn is_seeded(defect: u8) -> bool {
    SEEDED.lock().unwrap_or_else(PoisonError::into_inner).contains(&defect)
}
