//! The tables of functions: names, where they are, and the rule that each is held to.

use super::entry::Entry;
use super::{blas, device, dnn, event, graph, memory, module, nvrtc, stream};

/// The driver's functions.
pub(super) const DRIVER: &[&[Entry]] =
    &[device::ENTRIES, memory::ENTRIES, stream::ENTRIES, event::ENTRIES, module::ENTRIES, graph::ENTRIES];

/// Every function of the stand-in libraries, and the rule that it is held to.
pub fn standin_rules() -> Vec<(&'static str, &'static str)> {
    let tables = [DRIVER, &[nvrtc::ENTRIES], blas::TABLE, dnn::TABLE].into_iter().flatten().copied();
    tables.flatten().map(|entry| (entry.name, entry.rule)).collect()
}
