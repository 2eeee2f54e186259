//! The stand-in driver's devices and their contexts.

use super::entry::entries;
use super::world::{self, Context, here};
use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUresult as Code};
use std::ffi::{c_char, c_int, c_uint};

/// Writes an answer to `place`; a null pointer is an error.
pub(super) fn put<T>(place: *mut T, value: T) -> Result<(), Code> {
    if place.is_null() {
        return Err(Code::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: `place` is not null, and the caller guarantees space for one value.
    unsafe { place.write(value) };
    Ok(())
}

/// The device of a handle, which is its ordinal; valid only after cuInit.
fn device(ordinal: c_int) -> Result<usize, Code> {
    let here = here();
    if !here.started {
        return Err(Code::CUDA_ERROR_NOT_INITIALIZED);
    }
    let found = usize::try_from(ordinal).ok().filter(|device| *device < here.options.devices);
    found.ok_or(Code::CUDA_ERROR_INVALID_DEVICE)
}

fn attribute(which: c_int, arch: u32) -> Result<c_int, Code> {
    let is = |attribute: Attribute| which == attribute as c_int;
    Ok(match which {
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) => (arch / 10) as c_int,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) => (arch % 10) as c_int,
        // A small number, so that grids are small and kernels stride over them.
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) => 1,
        _ if is(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) => 0,
        _ => return Err(Code::CUDA_ERROR_INVALID_VALUE),
    })
}

/// Writes the same text for every error code: there is no table of texts, since Allfold shows cudarc's names of codes.
fn words(place: *mut *const c_char) -> Result<(), Code> {
    put(place, c"an answer of the stand-in driver".as_ptr())
}

entries! {
    cuDriverGetVersion(version: *mut c_int) "answers before cuInit too" {
        put(version, here().options.driver)
    }
    cuInit(flags: c_uint) "flags must be 0; may be called again" {
        let mut here = here();
        if flags != 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        match here.options.init {
            0 if here.options.devices == 0 => Err(Code::CUDA_ERROR_NO_DEVICE),
            0 => {
                here.started = true;
                Ok(())
            }
            100 => Err(Code::CUDA_ERROR_NO_DEVICE),
            803 => Err(Code::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
            1 => {
                // A driver without visible devices starts too.
                here.started = true;
                here.options.devices = 0;
                Ok(())
            }
            _ => Err(Code::CUDA_ERROR_UNKNOWN),
        }
    }
    cuGetErrorName(_code: c_uint, place: *mut *const c_char) "any thread, without a context" { words(place) }
    cuGetErrorString(_code: c_uint, place: *mut *const c_char) "any thread, without a context" { words(place) }
    cuDeviceGetCount(count: *mut c_int) "after cuInit" {
        let here = here();
        match here.started {
            true => put(count, here.options.devices as c_int),
            false => Err(Code::CUDA_ERROR_NOT_INITIALIZED),
        }
    }
    cuDeviceGet(place: *mut c_int, ordinal: c_int) "after cuInit; below the count" {
        device(ordinal)?;
        put(place, ordinal)
    }
    cuDeviceGetAttribute(place: *mut c_int, which: c_int, of: c_int) "only the attributes that Allfold queries" {
        device(of)?;
        put(place, attribute(which, here().options.arch)?)
    }
    cuDeviceTotalMem_v2(place: *mut usize, of: c_int) "after cuInit" {
        device(of)?;
        put(place, here().options.memory as usize)
    }
    cuDeviceGetName(place: *mut c_char, capacity: c_int, of: c_int) "the buffer must hold the name and its zero byte" {
        let name = c"stand-in GPU".to_bytes_with_nul();
        device(of)?;
        if (capacity as usize) < name.len() {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller guarantees the space that it has passed as its capacity.
        unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), place.cast(), name.len()) };
        Ok(())
    }
    cuDeviceGetUuid_v2(place: *mut [u8; 16], of: c_int) "a different one for every device" {
        let mut uuid = *b"GPU-stand-in-  00";
        uuid[16] = b'0' + device(of)? as u8;
        put(place, std::array::from_fn(|at| uuid[at + 1]))
    }
    cuDeviceCanAccessPeer(place: *mut c_int, from: c_int, to: c_int) "no device is a peer of itself" {
        let (from, to) = (device(from)?, device(to)?);
        put(place, c_int::from(from != to && here().options.peers))
    }
    cuDeviceGetP2PAttribute(place: *mut c_int, _which: c_int, from: c_int, to: c_int) "access and atomics as the options say" {
        let (from, to) = (device(from)?, device(to)?);
        put(place, c_int::from(from != to && here().options.peers))
    }
    cuDevicePrimaryCtxRetain(place: *mut u64, of: c_int)
    "one context per device, counted; refused where another process holds an exclusive device" {
        let device = device(of)?;
        let mut here = here();
        if here.options.taken.contains(&device) {
            return Err(Code::CUDA_ERROR_DEVICE_UNAVAILABLE);
        }
        if let Some((handle, context)) = here.contexts.iter_mut().find(|(_, context)| context.device == device) {
            context.retained += 1;
            return put(place, *handle);
        }
        let handle = here.handle();
        let context = Context { device, retained: 1, failed: None, peers: Default::default() };
        here.contexts.insert(handle, context);
        put(place, handle)
    }
    cuDevicePrimaryCtxRelease_v2(of: c_int) "the last release ends the context and all that it has" {
        let device = device(of)?;
        let mut here = here();
        let found = here.contexts.iter_mut().find(|(_, context)| context.device == device);
        let Some((&handle, context)) = found else { return Err(Code::CUDA_ERROR_INVALID_CONTEXT) };
        context.retained -= 1;
        if context.retained == 0 {
            here.contexts.remove(&handle);
            if here.streams.values().any(|stream| stream.context == handle && !stream.dead) {
                here.violates(format!("the context of device {device} was ended with live streams"));
            }
        }
        Ok(())
    }
    cuCtxSetCurrent(context: u64) "of the calling thread only; null leaves it without one" {
        if context != 0 && !here().contexts.contains_key(&context) {
            return Err(Code::CUDA_ERROR_INVALID_CONTEXT);
        }
        world::enter(context);
        Ok(())
    }
    cuCtxEnablePeerAccess(context: u64, flags: c_uint)
    "from the current context to another, once; kernels reach the other's memory only after it" {
        let mut here = here();
        let current = here.current()?;
        let Some(device) = here.contexts.get(&context).map(|context| context.device) else {
            return Err(Code::CUDA_ERROR_INVALID_CONTEXT);
        };
        if flags != 0 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        if !here.options.peers || context == current {
            return Err(Code::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        match here.contexts.get_mut(&current).is_some_and(|context| context.peers.insert(device)) {
            true => Ok(()),
            false => Err(Code::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED),
        }
    }
}
