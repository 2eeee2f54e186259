//! Functions of a library that is loaded by its path, as a table of pointers.
//!
//! cudarc looks for a library by its name in an order of its own, and panics where a function is missing. Where several
//! versions may be installed, the one that [`super::libraries`] has chosen must be the one that is called.

/// A structure of a library's functions by name, and `open`, which finds them all or says which is missing. Their types must be
/// those that cudarc declares in `$sys`, which the ABI test holds to the headers.
macro_rules! symbols {
    ($(#[$doc:meta])* $table:ident of $sys:path { $($function:ident($($type:ty),* $(,)?) -> $answer:ty;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the functions have the library's names")]
        #[derive(Clone, Copy)]
        pub(in crate::cuda) struct $table {
            $(pub $function: unsafe extern "C" fn($($type),*) -> $answer,)*
        }

        const _: () = {
            use $sys as declared;
            $(let _: unsafe fn($($type),*) -> $answer = declared::$function;)*
        };

        impl $table {
            /// The functions of the library at a path, which stays loaded.
            fn open(path: &std::path::Path) -> std::result::Result<$table, String> {
                let words = |error: libloading::Error| error.to_string();
                // SAFETY: the library is one of NVIDIA's, which was loaded before.
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
pub(in crate::cuda) use symbols;
