//! Loaded kernels by device, one set for the process.
//!
//! The table's lock is not held while NVRTC compiles or the driver loads a kernel. Loading may wait until the device is idle, and
//! therefore until another rank has finished a collective; if that rank were a thread that waits for the lock, both would deadlock. So
//! two threads may load the same module; the second copy is unloaded again.

use super::contexts::Contexts;
use super::numbered::{Handle, lock};
use crate::compile::image_for;
use crate::error::driver;
use crate::{Error, Family, Kernel, ProbedDevice, Result};
use allfold_kernels::DType;
use cudarc::driver::{result, sys};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Mutex;

type ModuleKey = (usize, Family, Option<DType>);

struct Loaded {
    modules: BTreeMap<ModuleKey, Handle<sys::CUmodule>>,
    functions: BTreeMap<(usize, Kernel), Handle<sys::CUfunction>>,
}

static LOADED: Mutex<Loaded> = Mutex::new(Loaded { modules: BTreeMap::new(), functions: BTreeMap::new() });
/// The lock that is held during compilation and loading where a test puts back defect 9 of `docs/GPU.md`.
static ALL_THE_WAY: Mutex<()> = Mutex::new(());

/// A kernel of a device, compiled and loaded on first use, which makes the device's context current for the calling thread.
pub(super) fn function(
    contexts: &Contexts,
    (ordinal, device): (usize, &ProbedDevice),
    kernel: &Kernel,
    seeded: impl Fn(u8) -> bool,
) -> Result<sys::CUfunction> {
    let _held = seeded(9).then(|| lock(&ALL_THE_WAY));
    let key = (ordinal, kernel.clone());
    if let Some(function) = lock(&LOADED).functions.get(&key) {
        return Ok(function.0);
    }
    let module = module(contexts, (ordinal, device), kernel, seeded(13))?;
    if !seeded(18) {
        contexts.enter(ordinal)?;
    }
    let name = CString::new(kernel.name.as_str())
        .map_err(|_| Error::Argument("the name of a kernel holds a zero byte".into()))?;
    // SAFETY: the module is live: no module in the list is ever unloaded.
    let function = unsafe { result::module::get_function(module.0, name) };
    let function = driver("find a kernel in its module", function)?;
    // Load the kernel now: otherwise the driver loads it at its first launch, and may then wait until the device is idle. SAFETY: the
    // function is the driver's.
    driver("load a kernel", unsafe { sys::cuFuncLoad(function) }.result())?;
    Ok(lock(&LOADED).functions.entry(key).or_insert(Handle(function)).0)
}

fn module(
    contexts: &Contexts,
    (ordinal, device): (usize, &ProbedDevice),
    kernel: &Kernel,
    anew: bool,
) -> Result<Handle<sys::CUmodule>> {
    let key = (ordinal, kernel.family, kernel.dtype);
    if let Some(module) = lock(&LOADED).modules.get(&key) {
        return Ok(*module);
    }
    let image = image_for(kernel.family, kernel.dtype, device.arch, anew)?;
    contexts.enter(ordinal)?;
    // SAFETY: NVRTC made the image; PTX includes its closing zero.
    let module = match unsafe { result::module::load_data(image.as_ptr().cast()) } {
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            return Err(too_new());
        }
        module => Handle(driver("load a module", module)?),
    };
    let kept = *lock(&LOADED).modules.entry(key).or_insert(module);
    if kept.0 != module.0 {
        // SAFETY: the module was loaded above, and no other code holds it.
        let _ = unsafe { result::module::unload(module.0) };
    }
    Ok(kept)
}

fn too_new() -> Error {
    let (major, minor) = crate::nvrtc_version().unwrap_or_default();
    let driver = crate::probe().map(|probe| probe.cuda).unwrap_or_default();
    Error::Refused {
        call: "load a module",
        answer: format!(
            "NVRTC {major}.{minor} is newer than the driver's CUDA {}.{}: pip install 'nvidia-cuda-nvrtc-cu{}', or a newer driver",
            driver.0, driver.1, driver.0
        ),
    }
}
