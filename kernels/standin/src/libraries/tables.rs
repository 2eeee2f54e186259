//! The tables of the stand-ins' functions: each function's name, address and rule.

use super::entry::Entry;
use super::{blas, device, dnn, event, graph, ipc, memory, module, nvrtc, stream};

/// The tables of the driver's functions.
pub(super) const DRIVER: &[&[Entry]] = &[
    device::ENTRIES,
    memory::ENTRIES,
    stream::ENTRIES,
    event::ENTRIES,
    ipc::ENTRIES,
    module::ENTRIES,
    graph::ENTRIES,
];

/// Every function of the stand-in libraries, with the rule that its callers must follow.
pub fn standin_rules() -> Vec<(&'static str, &'static str)> {
    let tables = [DRIVER, &[nvrtc::ENTRIES], blas::TABLE, dnn::TABLE].into_iter().flatten().copied();
    tables.flatten().map(|entry| (entry.name, entry.rule)).collect()
}
