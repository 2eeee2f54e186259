//! The stand-in driver's calls for events.

use super::device::put;
use super::entry::entries;
use super::shared_file::SharedFile;
use super::task::Ticket;
use super::world::{CudaEvent, Recorded, World, here};
use cudarc::driver::sys::CUresult as Code;
use std::ffi::c_uint;
use std::sync::Arc;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: c_uint = 4;

/// The ticket of an event's last recording; `None` if the event was never recorded.
fn ticket(here: &mut World, event: u64, call: &str) -> Result<Option<Arc<Ticket>>, Code> {
    match &here.event(event, call)?.last {
        Recorded::Never => Ok(None),
        Recorded::At(ticket) => Ok(Some(ticket.clone())),
        Recorded::Captured(..) => Err(Code::CUDA_ERROR_CAPTURED_EVENT),
    }
}

entries! {
    cuEventCreate(place: *mut u64, flags: c_uint) "of the current context; one for other processes has no time" {
        let mut here = here();
        let context = here.current()?;
        let (handle, timed) = (here.handle(), flags & DISABLE_TIMING == 0);
        let shared = match flags & INTERPROCESS != 0 {
            true if timed => return Err(Code::CUDA_ERROR_INVALID_VALUE),
            true => Some(SharedFile::new(0, here.device_of(context))?),
            false => None,
        };
        here.events.insert(handle, CudaEvent { context, timed, last: Recorded::Never, shared });
        put(place, handle)
    }
    cuEventDestroy_v2(event: u64) "returns at once; streams that already wait for the event still do" {
        let mut here = here();
        if here.event(event, "cuEventDestroy")?.shared.as_ref().is_some_and(|file| file.is_open()) {
            here.violates("cuEventDestroy: another process has the event open".into());
        }
        here.events.remove(&event);
        Ok(())
    }
    cuEventRecord(event: u64, stream: u64) "both of the current context; in a capture it is a captured event" {
        here().record(event, stream)
    }
    cuEventSynchronize(event: u64) "waits; an event that was never recorded has happened; 907 for a captured event" {
        let mut here = here();
        let context = here.event(event, "cuEventSynchronize")?.context;
        if let Some(ticket) = ticket(&mut here, event, "cuEventSynchronize")? {
            here = here.until("cuEventSynchronize", |_| ticket.is_done())?;
        }
        here.contexts.get(&context).and_then(|context| context.failed).map_or(Ok(()), Err)
    }
    cuEventQuery(event: u64) "as cuEventSynchronize, without the wait" {
        match ticket(&mut here(), event, "cuEventQuery")? {
            Some(ticket) if !ticket.is_done() => Err(Code::CUDA_ERROR_NOT_READY),
            _ => Ok(()),
        }
    }
    cuEventElapsedTime_v2(place: *mut f32, from: u64, to: u64) "both recorded and happened, of one context, and with times" {
        let mut here = here();
        if !here.event(from, "cuEventElapsedTime")?.timed || !here.event(to, "cuEventElapsedTime")?.timed {
            return Err(Code::CUDA_ERROR_INVALID_HANDLE);
        }
        if here.event(from, "cuEventElapsedTime")?.context != here.event(to, "cuEventElapsedTime")?.context {
            return Err(Code::CUDA_ERROR_INVALID_HANDLE);
        }
        let times = [from, to].map(|event| ticket(&mut here, event, "cuEventElapsedTime"));
        let [Some(from), Some(to)] = [times[0].clone()?, times[1].clone()?] else {
            return Err(Code::CUDA_ERROR_INVALID_HANDLE);
        };
        let (Some(from), Some(to)) = (from.time(), to.time()) else { return Err(Code::CUDA_ERROR_NOT_READY) };
        put(place, to.saturating_duration_since(from).as_secs_f32() * 1e3)
    }
}
