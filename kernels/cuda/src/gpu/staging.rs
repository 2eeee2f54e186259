//! Small copies from pageable host memory without a wait of the host, by a ring of pinned memory per stream.
//!
//! The driver may read pageable memory after its call has returned, so the host would have to wait for such a copy, and for all earlier
//! work of the stream: a step that writes 16 bytes would stop the host. So the bytes are first copied into the ring. The ring's quarters
//! are used in turn: an event follows the last copy out of each quarter, and the host waits for this event before the quarter is written
//! again. A large copy is not staged; the host waits for it, since a second copy by the host would cost more.
//!
//! A ring outlives its stream and is reused for another stream: pinning memory costs more than a ring saves a short-lived stream.

use super::numbered::{Handle, lock};
use crate::Result;
use crate::error::driver;
use cudarc::driver::{result, sys};
use std::collections::BTreeMap;
use std::sync::Mutex;

const QUARTERS: usize = 4;
/// The size of a quarter of the ring in bytes, and of the largest copy that is staged.
pub(super) const QUARTER: usize = 16 << 10;
/// Offsets in the ring are multiples of this many bytes.
const GRAIN: usize = 16;

/// The ring of pinned memory from which a stream's small copies are made.
pub(super) struct Ring {
    memory: Handle<*mut u8>,
    quarter: usize,
    /// Bytes of the current quarter that are in use.
    used: usize,
    /// For each quarter that was filled, the event behind the last copy out of it.
    left: [Option<Handle<sys::CUevent>>; QUARTERS],
    /// Whether the host has not yet waited for the event of the current quarter.
    entered: bool,
}

/// Free rings by device; their streams are destroyed.
static FREE: Mutex<BTreeMap<usize, Vec<Ring>>> = Mutex::new(BTreeMap::new());

impl Ring {
    /// A ring for a stream of `device`, whose context is current for the calling thread.
    pub fn new(device: usize) -> Result<Ring> {
        if let Some(ring) = lock(&FREE).get_mut(&device).and_then(Vec::pop) {
            return Ok(ring);
        }
        // SAFETY: the host memory is uninitialised, and is written before it is read.
        let memory = unsafe { result::malloc_host(QUARTERS * QUARTER, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let memory = Handle(driver("pin memory of the host", memory)?.cast());
        Ok(Ring { memory, quarter: 0, used: 0, left: [None; QUARTERS], entered: false })
    }

    /// Queues a copy of at most [`QUARTER`] bytes, which are read before this returns.
    ///
    /// # Safety
    /// The stream is live, its context is current for the thread, and `from.len()` bytes are allocated at `into`.
    pub unsafe fn write(&mut self, stream: sys::CUstream, into: u64, from: &[u8]) -> Result<()> {
        if self.used + from.len() > QUARTER {
            self.leave(stream)?;
        }
        if let (true, Some(event)) = (self.entered, self.left[self.quarter]) {
            // SAFETY: the event is live and of this device.
            driver("wait for an event", unsafe { result::event::synchronize(event.0) })?;
        }
        self.entered = false;
        let at = self.quarter * QUARTER + self.used;
        // SAFETY: the place is within the ring, no copy reads it, and its bytes stay until the quarter's event has happened.
        let place = unsafe {
            let place = self.memory.0.add(at);
            std::ptr::copy_nonoverlapping(from.as_ptr(), place, from.len());
            std::slice::from_raw_parts(place, from.len())
        };
        self.used = (self.used + from.len()).next_multiple_of(GRAIN).min(QUARTER);
        // SAFETY: the caller guarantees the stream and the bytes at `into`.
        driver("copy to the device", unsafe { result::memcpy_htod_async(into, place, stream) })
    }

    /// Records the event of the current quarter and continues with the next quarter.
    fn leave(&mut self, stream: sys::CUstream) -> Result<()> {
        let event = match self.left[self.quarter] {
            Some(event) => event,
            None => {
                let plain = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
                Handle(driver("make an event", result::event::create(plain))?)
            }
        };
        self.left[self.quarter] = Some(event);
        // SAFETY: the event and the stream are live and of one device.
        driver("record an event", unsafe { result::event::record(event.0, stream) })?;
        (self.quarter, self.used, self.entered) = ((self.quarter + 1) % QUARTERS, 0, true);
        Ok(())
    }

    /// Stores the ring for another stream of the device, just before `stream` is destroyed.
    pub fn retire(mut self, device: usize, stream: sys::CUstream) {
        // If no event can be recorded behind the last copies, the ring is leaked: the copies may still be in flight.
        if self.leave(stream).is_ok() {
            lock(&FREE).entry(device).or_default().push(self);
        }
    }
}
