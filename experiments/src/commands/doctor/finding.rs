//! A line of what `doctor` says.

use allfold_report::records::DoctorFinding;

/// Something that is here.
pub fn found(item: &str, detail: String) -> DoctorFinding {
    DoctorFinding { item: item.into(), found: true, detail, advice: None }
}

/// Something that the machine lacks, and how to get it.
pub fn missing(item: &str, detail: &str, advice: &str) -> DoctorFinding {
    DoctorFinding { item: item.into(), found: false, detail: detail.into(), advice: Some(advice.into()) }
}
