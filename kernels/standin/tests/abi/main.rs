//! Comparison of Allfold's declarations of NVIDIA's libraries with the headers of the oldest and the newest wheels: sizes, offsets,
//! enumerators, signatures. No GPU is needed; where the wheels are missing, each test prints SKIP.
//!
//! The declarations are cudarc's for CUDA 13.0; Allfold calls libraries of CUDA 12.8 and newer by them.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod blas;
mod dnn;
mod driver;
mod nvrtc;

use allfold_standin::abi::{Assertions, wheels};

/// Asserts signatures of functions, given as the function's name and, for inference, a `_` for each argument.
#[macro_export]
macro_rules! functions {
    ($assertions:expr, $($function:ident($($argument:tt),*)),* $(,)?) => {
        $($assertions.function(
            stringify!($function),
            std::any::type_name_of_val(&(sys::$function as unsafe fn($($argument),*) -> _)),
        ).unwrap();)*
    };
}

/// Asserts values of enumerators, given with their types.
#[macro_export]
macro_rules! enumerators {
    ($assertions:expr, $($of:ident::$name:ident),* $(,)?) => {
        $($assertions.value(stringify!($name), sys::$of::$name as i64);)*
    };
}

/// Asserts the layout of a structure: its size, and the offsets and sizes of its fields.
#[macro_export]
macro_rules! structure {
    ($assertions:expr, $of:ident as $c:literal { $($field:ident: $bytes:expr),* }) => {
        $assertions.size($c, size_of::<sys::$of>());
        $($assertions.field($c, stringify!($field), std::mem::offset_of!(sys::$of, $field), $bytes);)*
    };
}

/// Checks assertions against both sets of wheels, and that a wrong assertion among them is found and named.
fn hold(what: &str, assertions: Assertions) {
    assert!(!assertions.is_empty());
    let mut wrong = assertions.clone();
    wrong.value("INT_MAX - 2147483640", 8);
    for cuda in [12, 13] {
        match wheels(cuda) {
            Ok(folder) => {
                assertions.check(&folder).unwrap_or_else(|flaws| panic!("{what}, CUDA {cuda}:\n{flaws}"));
                let flaws = wrong.check(&folder).unwrap_err();
                assert_eq!(flaws, "static assertion failed: INT_MAX - 2147483640 is 8");
                println!("{what}: {} assertions hold over the headers of CUDA {cuda}", assertions.len());
            }
            Err(why) => println!("SKIP {what}, CUDA {cuda}: {why}"),
        }
    }
}

/// A wrong assertion: its text in the compiler's message, and the function that adds it.
type Mistake = (&'static str, fn(&mut Assertions));

/// A wrong declaration of each kind is found and named; a correct one passes.
#[test]
fn a_wrong_declaration_is_found() {
    let folder = match wheels(13) {
        Ok(folder) => folder,
        Err(why) => return println!("SKIP wrong declarations: {why}"),
    };
    let over = || Assertions::over(&["cuda.h"], &[]);
    let get = "unsafe fn(*mut i32, i32) -> cudarc::driver::sys::cudaError_enum";
    let mut right = over();
    right.function("cuDeviceGet", get).unwrap();
    right.field("CUuuid", "bytes", 0, 16);
    right.only_if("CUDA_VERSION < 12000", |old| old.value("CUDA_VERSION", 0));
    assert_eq!(right.check(&folder), Ok(()));
    let mistakes: [Mistake; 7] = [
        ("CUuuid has 12 bytes", |a| a.size("CUuuid", 12)),
        ("CUuuid.bytes is bytes 4 .. 4 + 16", |a| a.field("CUuuid", "bytes", 4, 16)),
        ("CUDA_ERROR_NOT_READY is 601", |a| a.value("CUDA_ERROR_NOT_READY", 601)),
        ("cuDeviceGet is int (*)(int*)", |a| {
            a.function("cuDeviceGet", "unsafe fn(*mut i32) -> i32").unwrap()
        }),
        ("cuDeviceGet is int (*)(int const*, int)", |a| {
            a.function("cuDeviceGet", "unsafe fn(*const i32, i32) -> i32").unwrap();
        }),
        ("cuDeviceGet is int (*)(int*, long long)", |a| {
            a.function("cuDeviceGet", "unsafe extern \"C\" fn(*mut i32, i64) -> i32").unwrap();
        }),
        ("cuDeviceGet is void (*)(int*, int)", |a| {
            a.function("cuDeviceGet", "core::option::Option<unsafe extern \"C\" fn(*mut i32, i32)>").unwrap();
        }),
    ];
    for (what, make) in mistakes {
        let mut wrong = over();
        make(&mut wrong);
        assert_eq!(wrong.check(&folder), Err(format!("static assertion failed: {what}")));
    }
    assert!(over().function("cuDeviceGet", "i32").is_err());
}
