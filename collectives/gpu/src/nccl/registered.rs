//! Buffers that NCCL allocates and registers, and calls that are replayed as a graph.
//!
//! ```text
//! Registration::Buffer   ncclMemAlloc, ncclCommRegister         this rank alone
//! Registration::Window   ncclMemAlloc, ncclCommWindowRegister   all ranks together: the same offset is the same buffer on each
//! ```

use super::api::{Api, RawComm, check};
use super::aside::Sent;
use super::comm::{NcclComm, Region};
use crate::driver::failed;
use crate::{Error, Result};
use allfold_cuda::Memory;
use std::ffi::{c_int, c_void};
use std::ops::Deref;

/// The flag of a window whose buffers have the same size and offset on all ranks (`NCCL_WIN_COLL_SYMMETRIC`).
const SYMMETRIC: c_int = 1;

/// How NCCL knows a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// As a buffer of this rank (`ncclCommRegister`, NCCL 2.19).
    Buffer,
    /// As a window of all ranks (`ncclCommWindowRegister`, NCCL 2.27).
    Window,
}

/// A buffer for the collectives of a communicator. A registered buffer that is not given to [`NcclComm::free`] stays allocated, because
/// kernels of a failed communicator may use it.
pub struct CommBuffer {
    memory: Memory,
    /// The handle of the registration; null for a window that this machine does not support.
    registered: Option<(Registration, Sent<*mut c_void>)>,
}

impl Deref for CommBuffer {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

fn lacks(function: &str, since: &str) -> Error {
    Error::Argument(format!("this NCCL has no {function}; {since} or newer is needed to register buffers so"))
}

impl NcclComm {
    /// Allocates a buffer of `bytes` bytes on this rank's device, registered if asked. Every rank must ask for the same.
    ///
    /// # Errors
    /// NCCL is too old; the deadline; NCCL or the driver fails.
    pub fn buffer(&mut self, bytes: usize, registration: Option<Registration>) -> Result<CommBuffer> {
        let Some(registration) = registration else {
            return Ok(CommBuffer { memory: self.queue.memory(bytes).map_err(failed)?, registered: None });
        };
        self.enter(None, || format!("register {bytes} bytes"))?;
        let api = self.api;
        let allocate = api.mem_alloc.ok_or_else(|| lacks("ncclMemAlloc", "2.19"))?;
        let (local, window) = (api.register, api.window_register);
        match registration {
            Registration::Buffer if local.is_none() => return Err(lacks("ncclCommRegister", "2.19")),
            Registration::Window if window.is_none() => return Err(lacks("ncclCommWindowRegister", "2.27")),
            _ => {}
        }
        let (memory, handle) = (Region::new(), Region::new());
        let (to, known) = (memory.clone(), handle.clone());
        let answer = self.blocking_call("register a buffer", move |_: &Api, comm: RawComm| {
            // SAFETY: `to` is a place for an address; the device of the queue is current.
            let mut answer = unsafe { allocate(to.address(), bytes.max(1)) };
            if let (Registration::Buffer, Some(register), 0) = (registration, local, answer) {
                // SAFETY: the communicator is live, the memory was allocated above, and `known` is a place for a handle.
                answer = unsafe { register(comm, to.get(), bytes.max(1), known.address()) };
            }
            if let (Registration::Window, Some(register), 0) = (registration, window, answer) {
                // SAFETY: as above.
                answer = unsafe { register(comm, to.get(), bytes.max(1), known.address(), SYMMETRIC) };
            }
            answer
        })?;
        self.settle("register a buffer", answer)?;
        let (machine, device) = (self.queue.machine().clone(), self.queue.device());
        // SAFETY: NCCL allocated the memory on this device; it is freed by `NcclComm::free` alone, after all queued work.
        let memory = unsafe { Memory::lent(&machine, device, memory.get() as u64, bytes) };
        Ok(CommBuffer { memory, registered: Some((registration, Sent::new(handle.get()))) })
    }

    /// Frees a buffer, after all queued work. Every rank must call this.
    ///
    /// # Errors
    /// The deadline; NCCL or the driver fails.
    pub fn free(&mut self, buffer: CommBuffer) -> Result<()> {
        let Some((registration, handle)) = buffer.registered else { return Ok(()) };
        self.wait("finish the work on a registered buffer")?;
        let address = Sent::new(buffer.memory.address() as *mut c_void);
        let answer = self.blocking_call("free a registered buffer", move |api: &Api, comm: RawComm| {
            let end = match registration {
                Registration::Buffer => api.deregister,
                Registration::Window => api.window_deregister,
            };
            let mut answer = 0;
            if let (Some(end), false) = (end, handle.get().is_null()) {
                // SAFETY: the communicator is live and the handle is of its registration.
                answer = unsafe { end(comm, handle.get()) };
            }
            match (answer, api.mem_free) {
                // SAFETY: the memory was allocated by NCCL, is no longer registered, and no work uses it.
                (0, Some(free)) => unsafe { free(address.get()) },
                (answer, _) => answer,
            }
        })?;
        check("free a registered buffer", answer)
    }

    /// Captures the calls of `body` as a graph, and calls `run` with a function that replays the graph once.
    ///
    /// Calls of a kind that has not been made yet must not be captured. The buffers of the calls must outlive `run`.
    ///
    /// # Errors
    /// Those of `body` and `run`; the driver refuses the capture.
    pub fn replaying<R>(
        &mut self,
        body: impl FnOnce(&mut NcclComm) -> Result<()>,
        run: impl FnOnce(&mut NcclComm, &dyn Fn() -> Result<()>) -> Result<R>,
    ) -> Result<R> {
        let (machine, stream) = (self.queue.machine().clone(), self.queue.stream());
        machine.begin_capture(stream).map_err(failed)?;
        let captured = body(self);
        let graph = machine.end_capture(stream).map_err(failed);
        let ran = match (captured, &graph) {
            (Ok(()), Ok(graph)) => {
                // SAFETY: the caller keeps the buffers of the calls while `run` runs.
                run(self, &|| unsafe { machine.replay(stream, *graph) }.map_err(failed))
            }
            (Ok(()), Err(error)) => Err(error.clone()),
            (Err(error), _) => Err(error),
        };
        graph.into_iter().for_each(|graph| machine.forget(graph));
        ran
    }
}
