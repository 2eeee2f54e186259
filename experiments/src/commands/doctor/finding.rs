//! The findings that `doctor` prints, a line each.

use allfold_report::records::DoctorFinding;

/// A finding: the machine has this item.
pub fn found(item: &str, detail: String) -> DoctorFinding {
    DoctorFinding { item: item.into(), found: true, detail, advice: None }
}

/// A finding: the machine lacks this item; `advice` says how to get it.
pub fn missing(item: &str, detail: &str, advice: &str) -> DoctorFinding {
    DoctorFinding { item: item.into(), found: false, detail: detail.into(), advice: Some(advice.into()) }
}
