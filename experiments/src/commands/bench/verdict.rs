//! The result of a sweep's checks, and the identity of its results.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_report::records::{CollectiveCall, MeasuredCollective};

/// The result of a sweep's checks, which the command returns only after the records are written.
pub type CheckResult = CommandResult;

/// Fails if the number of `wrong` elements is more than 0. `wrong` is `None` if no result was checked; `first` is the place of
/// the first wrong element.
pub fn verdict(wrong: Option<u64>, first: Option<String>) -> CheckResult {
    match wrong {
        Some(wrong) if wrong > 0 => Err(CommandError::check(format!(
            "{wrong} wrong elements; the first: {}",
            first.unwrap_or_default()
        ))),
        _ => Ok(()),
    }
}

/// The line that identifies a result: two results with equal identities and inputs must have equal checksums.
pub fn identity(record: &MeasuredCollective) -> String {
    identity_of(&record.call, record.checksum.as_deref())
}

/// The line that identifies a call's result, with the result's checksum.
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
