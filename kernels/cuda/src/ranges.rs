//! Ranges of NVTX, by which profilers such as Nsight Systems name what a thread does.
//!
//! They are marked if `ALLFOLD_NVTX` is set, and not `0`, by a library of NVTX that exports its functions for programs without C headers.
//! Under a profiler that library hands the ranges to the profiler; otherwise they cost some nanoseconds each.

use crate::libraries::CudaLibrary;
use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// NVTX's functions, as `nvToolsExt.h` declares them: both return the depth of the thread's ranges.
struct Nvtx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

impl Nvtx {
    fn open() -> Option<Nvtx> {
        let wanted = std::env::var_os("ALLFOLD_NVTX")?;
        if wanted.is_empty() || wanted == "0" {
            return None;
        }
        let found = CudaLibrary::Nvtx.load().and_then(|path| {
            // SAFETY: the library is NVIDIA's and is already loaded.
            let library = Box::leak(Box::new(unsafe { libloading::Library::new(path) }.ok()?));
            // SAFETY: the functions have these types in NVTX's header.
            unsafe {
                Some(Nvtx {
                    push: *library.get(b"nvtxRangePushA\0").ok()?,
                    pop: *library.get(b"nvtxRangePop\0").ok()?,
                })
            }
        });
        if found.is_none() {
            let how = CudaLibrary::Nvtx.how_to_get();
            eprintln!("warning: ALLFOLD_NVTX is set and NVTX is not there, so no ranges are marked: {how}");
        }
        found
    }
}

/// A range of the calling thread, which ends when it is dropped.
#[must_use]
pub struct NvtxRange(Option<&'static Nvtx>, PhantomData<*const ()>);

impl NvtxRange {
    /// Begins a range inside the thread's present one; does nothing unless `ALLFOLD_NVTX` is set.
    pub fn begin(name: &'static CStr) -> NvtxRange {
        static FOUND: OnceLock<Option<Nvtx>> = OnceLock::new();
        let nvtx = FOUND.get_or_init(Nvtx::open).as_ref();
        if let Some(nvtx) = nvtx {
            // SAFETY: the name ends with a zero byte, and NVTX copies it or needs it no longer than the program runs.
            unsafe { (nvtx.push)(name.as_ptr()) };
        }
        NvtxRange(nvtx, PhantomData)
    }
}

impl Drop for NvtxRange {
    fn drop(&mut self) {
        if let Some(nvtx) = self.0 {
            // SAFETY: the function takes no arguments; the range was begun on this thread.
            unsafe { (nvtx.pop)() };
        }
    }
}
