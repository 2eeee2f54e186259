//! Kernels by name, for the stand-in driver: a driver's launch has a kernel's name and pointers to its arguments.

use super::library::{loaded, run_kernel};
use super::options::FiberOrder;
use super::work::LAUNCHED;
use allfold_base::lock;
use std::ffi::{CStr, c_void};

/// The names of all kernels of the shim.
pub fn shim_kernels() -> Vec<String> {
    let Ok(entries) = loaded() else { return Vec::new() };
    // SAFETY: the function returns null or a string that lives as long as the library, which is never unloaded.
    let name = |nth| unsafe {
        let name = (entries.kernel)(nth);
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    };
    (0..).map_while(name).collect()
}

/// The source file of a kernel, and the size of each of its arguments in bytes.
fn describe(name: &CStr) -> Option<(&'static CStr, Vec<usize>)> {
    let entries = loaded().ok()?;
    let mut sizes = std::ptr::null();
    // SAFETY: the name ends with a zero byte, and the function writes one pointer to `sizes`.
    let file = unsafe { (entries.describe)(name.as_ptr(), &mut sizes) };
    if file.is_null() {
        return None;
    }
    // SAFETY: both pointers live as long as the library, which is never unloaded; a 0 ends the sizes.
    unsafe {
        let sizes = (0..).map(|nth| *sizes.add(nth)).take_while(|size| *size > 0).collect();
        Some((CStr::from_ptr(file), sizes))
    }
}

/// Whether a source file has a kernel of this name.
pub(crate) fn is_of(name: &CStr, file: &str) -> bool {
    describe(name).is_some_and(|(found, _)| found.to_bytes() == file.as_bytes())
}

/// The size of each argument of a kernel in bytes.
pub(crate) fn argument_sizes(name: &CStr) -> Vec<usize> {
    describe(name).map_or_else(Vec::new, |(_, sizes)| sizes)
}

/// Runs a kernel with copies of its arguments.
pub(crate) fn run_by_name(
    name: &CStr,
    grid: [u32; 3],
    threads: u32,
    arguments: &mut [*mut c_void],
) -> Result<(), String> {
    // SAFETY: the caller has copied as many arguments as the kernel has.
    unsafe { run_kernel(name, grid, threads, arguments, FiberOrder::Upwards) }?;
    lock(&LAUNCHED).insert(name.to_string_lossy().into_owned());
    Ok(())
}
