//! The tables of functions: names, where they are, and the rule that each is held to.

use super::{blas, device, dnn, event, graph, memory, module, nvrtc, stream};

/// A function of a stand-in library.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    /// Its symbol.
    pub name: &'static str,
    /// Where it is.
    pub at: *const (),
    /// What it is held to, beyond what its name says.
    pub rule: &'static str,
}

/// Functions with the C calling convention, and the table of them. A body answers `Result<(), _>` of the library's codes.
macro_rules! entries {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) $rule:literal $body:block)*) => {
        $(
            extern "C" fn $name($($argument: $type),*) -> u32 {
                let body = || -> std::result::Result<(), Code> { $body };
                body().err().map_or(0, |code| code as u32)
            }
        )*
        pub(super) const ENTRIES: &[crate::libraries::table::Entry] = &[$(
            crate::libraries::table::Entry { name: stringify!($name), at: $name as *const (), rule: $rule }
        ),*];
    };
}
pub(super) use entries;

/// The driver's functions.
pub(super) const DRIVER: &[&[Entry]] =
    &[device::ENTRIES, memory::ENTRIES, stream::ENTRIES, event::ENTRIES, module::ENTRIES, graph::ENTRIES];

/// Every function of the stand-in libraries, and the rule that it is held to.
pub fn standin_rules() -> Vec<(&'static str, &'static str)> {
    let tables = [DRIVER, &[nvrtc::ENTRIES], blas::TABLE, dnn::TABLE].into_iter().flatten().copied();
    tables.flatten().map(|entry| (entry.name, entry.rule)).collect()
}
