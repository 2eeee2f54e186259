//! The stand-in driver's calls for streams.

use super::device::put;
use super::entry::entries;
use super::work;
use super::world::{CudaStream, here};
use cudarc::driver::sys::CUresult as Code;
use std::ffi::{c_int, c_uint};
use std::sync::Arc;

/// Creates a stream of the current context.
fn create(place: *mut u64) -> Result<(), Code> {
    let mut here = here();
    let context = here.current()?;
    let (handle, seed) = (here.handle(), here.options.seed);
    let (queue, wake) = (Default::default(), Arc::default());
    here.streams.insert(handle, CudaStream { context, queue, busy: false, dead: false, wake, capture: None });
    work::begin(handle, seed);
    put(place, handle)
}

entries! {
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) "as NVIDIA's GPUs: the greatest is the lowest number" {
        put(least, 0)?;
        put(greatest, -5)
    }
    cuStreamCreateWithPriority(place: *mut u64, _flags: c_uint, priority: c_int) "as cuStreamCreate; the priority changes no order" {
        match priority {
            -5..=0 => create(place),
            _ => Err(Code::CUDA_ERROR_INVALID_VALUE),
        }
    }
    cuStreamCreate(place: *mut u64, _flags: c_uint) "of the current context; a thread of its own runs its work in order" {
        create(place)
    }
    cuStreamDestroy_v2(stream: u64) "returns at once; queued work still runs; the handle becomes invalid" {
        let mut here = here();
        let found = here.stream(stream, "cuStreamDestroy")?;
        found.dead = true;
        if found.capture.is_some() {
            here.violates("cuStreamDestroy: the stream is being captured".into());
        }
        here.wake();
        Ok(())
    }
    cuStreamSynchronize(stream: u64) "waits for all queued work; refused in a capture, which becomes invalid" {
        let mut here = here();
        let context = here.stream(stream, "cuStreamSynchronize")?.context;
        here.unless_captured(stream)?;
        here = here.until("cuStreamSynchronize", |world| world.streams.get(&stream).is_none_or(CudaStream::is_idle))?;
        here.contexts.get(&context).and_then(|context| context.failed).map_or(Ok(()), Err)
    }
    cuStreamQuery(stream: u64) "not ready while work is left; refused in a capture, which becomes invalid" {
        let mut here = here();
        let idle = here.stream(stream, "cuStreamQuery")?.is_idle();
        here.unless_captured(stream)?;
        if idle { Ok(()) } else { Err(Code::CUDA_ERROR_NOT_READY) }
    }
    cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint)
    "for the last record before this call; a captured event takes the stream into the capture; 905 and 902 as the driver returns them" {
        here().wait(stream, event)
    }
    cuStreamIsCapturing(stream: u64, place: *mut c_int) "0 no, 1 under way, 2 invalid" {
        let mut here = here();
        let capture = here.stream(stream, "cuStreamIsCapturing")?.capture;
        let spoilt = capture.and_then(|id| here.captures.get(&id)).is_some_and(|capture| capture.invalid);
        put(place, c_int::from(capture.is_some()) + c_int::from(spoilt))
    }
    cuStreamBeginCapture_v2(stream: u64, mode: c_uint) "relaxed mode; once per stream" {
        // 2 is CU_STREAM_CAPTURE_MODE_RELAXED: the other modes forbid calls of this and other threads, which are not modelled.
        if mode != 2 {
            return Err(Code::CUDA_ERROR_INVALID_VALUE);
        }
        here().begin_capture(stream)
    }
    cuStreamEndCapture(stream: u64, place: *mut u64)
    "by the stream that began; 901 invalid capture, 903 another stream, 904 a stream that was not joined again" {
        let mut here = here();
        put(place, 0)?;
        let tasks = here.end_capture(stream)?;
        let handle = here.handle();
        here.graphs.insert(handle, tasks);
        put(place, handle)
    }
}
