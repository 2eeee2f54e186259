//! The stand-in driver's calls for modules, their functions and launches.

use super::device::put;
use super::entry::entries;
use super::task::{Kernel, Task};
use super::world::{Function, Module, here};
use crate::shim;
use cudarc::driver::sys::CUresult as Code;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Arc;

/// The source file of an image `standin FORM ARCH FILE MAJOR` of the stand-in for NVRTC, if this driver accepts the image.
fn family(image: *const c_void, driver: i32, device: u32) -> Result<String, Code> {
    if image.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: images end with a zero byte.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy().into_owned();
    let words: Vec<&str> = text.split(' ').collect();
    let ["standin", form, arch, file, major] = words[..] else { return Err(Code::CUDA_ERROR_INVALID_IMAGE) };
    let arch: u32 = arch.parse().map_err(|_| Code::CUDA_ERROR_INVALID_IMAGE)?;
    let major: i32 = major.parse().map_err(|_| Code::CUDA_ERROR_INVALID_IMAGE)?;
    let fits = if form == "cubin" { arch / 10 == device / 10 && arch <= device } else { arch <= device };
    match fits {
        false => Err(Code::CUDA_ERROR_NO_BINARY_FOR_GPU),
        true if major > driver / 1000 => Err(Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION),
        true => Ok(file.into()),
    }
}

/// Copies a kernel's arguments; the kernel itself determines their sizes.
fn arguments(name: &CStr, pointers: *const *const c_void) -> Vec<Vec<u64>> {
    let sizes = shim::argument_sizes(name);
    let one = |(nth, size): (usize, &usize)| {
        let mut words = vec![0u64; size.div_ceil(8)];
        // SAFETY: the caller guarantees a pointer to each argument of the kernel.
        unsafe {
            let from = *pointers.add(nth);
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), words.as_mut_ptr().cast(), *size);
        }
        words
    };
    sizes.iter().enumerate().map(one).collect()
}

entries! {
    cuModuleLoadData(place: *mut u64, image: *const c_void)
    "waits until the current context is idle; an image of a newer NVRTC or another GPU is refused" {
        let mut here = here();
        let context = here.current()?;
        let (driver, arch) = (here.options.driver, here.options.arch);
        let family = family(image, driver, arch)?;
        here = here.until("cuModuleLoadData", |world| world.idle(context))?;
        let handle = here.handle();
        here.modules.insert(handle, Module { context, family });
        put(place, handle)
    }
    cuModuleUnload(module: u64) "of the current context; its functions become invalid" {
        let mut here = here();
        here.current()?;
        here.functions.retain(|_, function| function.module != module);
        here.modules.remove(&module).map(|_| ()).ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    }
    cuModuleGetFunction(place: *mut u64, module: u64, name: *const c_char)
    "waits until the current context is idle, as lazy loading does; the name must be a kernel's" {
        let mut here = here();
        let current = here.current()?;
        let Some(found) = here.modules.get(&module) else { return Err(Code::CUDA_ERROR_INVALID_HANDLE) };
        let (context, family) = (found.context, found.family.clone());
        if context != current {
            return Err(Code::CUDA_ERROR_INVALID_CONTEXT);
        }
        // SAFETY: the caller gives a string that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_owned();
        if !shim::is_of(&name, &family) {
            return Err(Code::CUDA_ERROR_NOT_FOUND);
        }
        here = here.until("cuModuleGetFunction", |world| world.idle(context))?;
        let handle = here.handle();
        here.functions.insert(handle, Function { module, context, name });
        put(place, handle)
    }
    cuFuncLoad(function: u64) "of the current context" {
        let here = here();
        let current = here.current()?;
        let context = here.functions.get(&function).ok_or(Code::CUDA_ERROR_INVALID_HANDLE)?.context;
        if context == current { Ok(()) } else { Err(Code::CUDA_ERROR_INVALID_CONTEXT) }
    }
    cuLaunchKernel(
        function: u64, x: c_uint, y: c_uint, z: c_uint, tx: c_uint, ty: c_uint, tz: c_uint,
        shared: c_uint, stream: u64, pointers: *const *const c_void, extra: *const *const c_void,
    )
    "function, stream and thread of one context; arguments are copied before it returns; sides within CUDA's limits" {
        let mut here = here();
        let context = here.own(stream, "cuLaunchKernel")?.context;
        let Some(found) = here.functions.get(&function) else { return Err(Code::CUDA_ERROR_INVALID_HANDLE) };
        if found.context != context {
            return Err(Code::CUDA_ERROR_INVALID_HANDLE);
        }
        let name = found.name.clone();
        let sides = [x, y, z].iter().all(|side| *side > 0) && x <= i32::MAX as u32 && y.max(z) <= 65_535;
        if !sides || tx == 0 || tx > 1024 || (ty, tz) != (1, 1) || shared != 0 || !extra.is_null() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        let arguments = arguments(&name, pointers);
        let kernel = Kernel { name, grid: [x, y, z], threads: tx, arguments };
        here.give(stream, "cuLaunchKernel", Task::Kernel(Arc::new(kernel)))
    }
}
