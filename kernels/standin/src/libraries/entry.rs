//! A function of a stand-in library, and how a table of them is written.

/// A function of a stand-in library.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    /// The function's symbol.
    pub name: &'static str,
    /// The function's address.
    pub at: *const (),
    /// The rule that the stand-in holds the caller to.
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
        pub(super) const ENTRIES: &[crate::libraries::entry::Entry] = &[$(
            crate::libraries::entry::Entry { name: stringify!($name), at: $name as *const (), rule: $rule }
        ),*];
    };
}
pub(super) use entries;
