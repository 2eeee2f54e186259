//! The stand-in for NVTX: it counts ranges by name.

use super::entry::entries;
use super::library;
use allfold_base::lock;
use cudarc::driver::sys::CUresult as Code;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::Mutex;

static ENDED: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// The names of the thread's open ranges.
    static OPEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The number of ranges that have ended, by name, each behind those around it: `step/forward`.
pub fn standin_ranges() -> BTreeMap<String, usize> {
    lock(&ENDED).clone()
}

/// Makes the stand-in this process's NVTX.
///
/// # Errors
/// The error of a compilation or load.
pub fn install_ranges() -> allfold_cuda::Result<()> {
    library::install(&["libnvtx3interop.so.1"], &[ENTRIES])
}

entries! {
    nvtxRangePushA(name: *const c_char) "opens a range of the thread" {
        // SAFETY: the caller gives a string that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        OPEN.with_borrow_mut(|open| open.push(name));
        Ok(())
    }
    nvtxRangePop() "ends the thread's latest range" {
        let name = OPEN.with_borrow_mut(|open| {
            let name = open.join("/");
            open.pop().map(|_| name)
        });
        let name = name.ok_or(Code::CUDA_ERROR_INVALID_VALUE)?;
        *lock(&ENDED).entry(name).or_default() += 1;
        Ok(())
    }
}
