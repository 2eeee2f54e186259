//! What a sweep's checks came to, and what its results are.

use crate::cli::error::{CommandError, CommandResult};
use allfold_report::records::{CollectiveCall, MeasuredCollective};

/// What the checks of a sweep came to: told only after the records are written.
pub type CheckResult = CommandResult;

/// The verdict of so many wrong elements, `None` where nothing was checked; `first` is where the first one is.
pub fn verdict(wrong: Option<u64>, first: Option<String>) -> CheckResult {
    match wrong {
        Some(wrong) if wrong > 0 => Err(CommandError::check(format!(
            "{wrong} wrong elements; the first: {}",
            first.unwrap_or_default()
        ))),
        _ => Ok(()),
    }
}

/// A result's identity: two results with equal identities and inputs must have equal checksums.
pub fn identity(record: &MeasuredCollective) -> String {
    identity_of(&record.call, record.checksum.as_deref())
}

/// The identity of a call's result, with its checksum.
pub fn identity_of(call: &CollectiveCall, checksum: Option<&str>) -> String {
    format!(
        "# {} B: {}, order {}, tree {}, checksum {}",
        call.bytes,
        call.algorithm,
        call.order_class.as_deref().unwrap_or("none"),
        call.tree_hash.as_deref().unwrap_or("none"),
        checksum.unwrap_or("N/A"),
    )
}
