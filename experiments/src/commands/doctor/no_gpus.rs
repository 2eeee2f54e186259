//! Replaces `gpus` in a build without CUDA.

use super::finding::missing;
use allfold_report::records::DoctorFinding;

/// The finding of a build without CUDA.
pub fn findings() -> Vec<DoctorFinding> {
    let advice = "build it with the feature `cuda`; everything else runs on CPUs and on the simulator";
    vec![missing("cuda", "this program was built without GPUs", advice)]
}
