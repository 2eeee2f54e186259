//! Defects that were mended, and that a test puts back into [`super::Gpu`] to see them found. For tests.

use std::sync::{Mutex, PoisonError};

static SEEDED: Mutex<&[u8]> = Mutex::new(&[]);

/// Puts these defects back in, by their numbers in `docs/GPU.md`, and takes out every other.
pub fn seed_defects(defects: &'static [u8]) {
    *SEEDED.lock().unwrap_or_else(PoisonError::into_inner) = defects;
}

/// Whether a defect is put back in.
pub(super) fn is_seeded(defect: u8) -> bool {
    SEEDED.lock().unwrap_or_else(PoisonError::into_inner).contains(&defect)
}
