//! The functions of a library that is loaded by its path, as a table of pointers.
//!
//! cudarc searches for a library by name in its own order, and panics where a function is missing. Where several versions are installed,
//! Allfold must call the version that [`super::libraries`] has chosen.

/// Declares a structure of a library's functions by name, with a function `open` that finds all functions or returns which one is
/// missing. The types must be those that cudarc declares in `$sys`; the ABI test compares cudarc's types with the headers.
macro_rules! symbols {
    ($(#[$doc:meta])* $table:ident of $sys:path { $($function:ident($($type:ty),* $(,)?) -> $answer:ty;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the functions have the library's names")]
        #[derive(Clone, Copy)]
        pub(crate) struct $table {
            $(pub $function: unsafe extern "C" fn($($type),*) -> $answer,)*
        }

        const _: () = {
            use $sys as declared;
            $(let _: unsafe fn($($type),*) -> $answer = declared::$function;)*
        };

        impl $table {
            /// Finds the functions of the library at `path`, which stays loaded.
            fn open(path: &std::path::Path) -> std::result::Result<$table, String> {
                let words = |error: libloading::Error| error.to_string();
                // SAFETY: the library is one of NVIDIA's and is already loaded.
                let library = unsafe { libloading::Library::new(path) }.map_err(words)?;
                let library = Box::leak(Box::new(library));
                Ok($table {
                    $($function: {
                        let name = concat!(stringify!($function), "\0").as_bytes();
                        // SAFETY: the function has this type in the library's header.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($type),*) -> $answer>(name) };
                        *found.map_err(words)?
                    },)*
                })
            }
        }
    };
}
pub(crate) use symbols;
