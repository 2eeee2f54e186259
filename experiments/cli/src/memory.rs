//! Runs that need more memory than this process may still allocate are refused before they start.

use crate::error::{CommandError, CommandResult};

pub use allfold_base::memory::{available, total};

/// Refuses to start with less than `need` bytes of free memory. `need` is `None` if the sum overflows.
pub fn require(need: Option<u64>, what: &str) -> CommandResult {
    require_or(need, what, "take fewer ranks or a smaller size")
}

/// As [`require`], with the advice that the error gives.
pub fn require_or(need: Option<u64>, what: &str, remedy: &str) -> CommandResult {
    let have = available().unwrap_or(u64::MAX / 2);
    match need {
        Some(need) if need <= have => Ok(()),
        Some(need) => Err(CommandError::usage(format!(
            "{what} need {} of memory and {} are available; {remedy}",
            gib(need),
            gib(have)
        ))),
        None => Err(CommandError::usage(format!("{what} need more than 2^64 bytes; {remedy}"))),
    }
}

/// Refuses more ranks than one process can run as threads: each rank takes two threads with several memory mappings each, and
/// Linux allows a process 65,530 mappings (vm.max_map_count).
pub fn threads(ranks: u32) -> CommandResult {
    const MOST: u32 = 4_096;
    if ranks <= MOST {
        return Ok(());
    }
    Err(CommandError::usage(format!(
        "{ranks} ranks are more than the {MOST} that run as threads of one process; `allfold simulate` times any number"
    )))
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_refused_with_both_numbers() {
        assert_eq!(require(Some(1), "buffers"), Ok(()));
        let Err(CommandError::Usage(text)) = require(Some(1 << 62), "buffers") else { panic!("not refused") };
        assert!(text.contains("4294967296.0 GiB") && text.contains("available"), "{text}");
        assert!(require(None, "buffers").is_err());
    }
}
