//! The limits that keys of several tables share.

use crate::{Error, Result};

/// The largest batch and the widest layer: with both, the operation count of a layer still fits in 64 bits.
const LARGEST: usize = 65_536;

/// Checks that sizes are at least 1, and small enough for the operation count of a layer to fit in 64 bits.
pub(crate) fn sizes(keys: &[(&str, &[usize])]) -> Result<()> {
    for (key, sizes) in keys {
        if let Some(size) = sizes.iter().find(|size| !(1..=LARGEST).contains(*size)) {
            return Err(Error(format!("`{key}` has {size}; it must be 1 to {LARGEST}")));
        }
    }
    Ok(())
}

/// Checks that values are at least 0 and less than 1.
pub(crate) fn shares(keys: &[(&str, f64)]) -> Result<()> {
    match keys.iter().find(|(_, value)| !(0.0..1.0).contains(value)) {
        Some((key, value)) => {
            Err(Error(format!("`{key}` is {value}; it must be at least 0 and less than 1")))
        }
        None => Ok(()),
    }
}

/// Checks that values are finite and not negative.
pub(crate) fn not_negative(keys: &[(&str, f64)]) -> Result<()> {
    match keys.iter().find(|(_, value)| !value.is_finite() || *value < 0.0) {
        Some((key, value)) => Err(Error(format!("`{key}` is {value}; it must be 0 or more"))),
        None => Ok(()),
    }
}
