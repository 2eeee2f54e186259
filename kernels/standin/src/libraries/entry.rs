//! An entry of a stand-in library's table of functions, and the macro that defines such tables.

/// An entry of a stand-in library's table: one function.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    /// The function's symbol.
    pub name: &'static str,
    /// The function's address.
    pub at: *const (),
    /// The rule that callers of the function must follow.
    pub rule: &'static str,
}

/// Defines functions with the C calling convention, and their table. A body returns `Result<(), _>` with the library's error codes.
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
