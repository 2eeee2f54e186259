//! The GPUs of a machine: cudarc's driver calls, with kernels compiled and loaded on first use.
//!
//! ```text
//! Gpu --- contexts   the devices' contexts, opened when a device is first used; which devices reach each other
//!      |- modules    kernels, compiled and loaded once for the process
//!      |- staging    small copies from the host, without a wait
//!      |- ipc        memory and events of several processes
//!      \- numbered   streams, events and graphs by number
//! ```
//!
//! Every call enters the context that it needs: the driver keeps one current context per thread, and any thread may call.

mod contexts;
mod ipc;
mod modules;
mod numbered;
mod staging;

use super::error::driver;
use super::machine::{CudaEvent, CudaGraph, CudaMachine, CudaStream, IpcHandle, Launch, THREADS};
use super::{Error, ProbedDevice, Result, probe};
use contexts::Contexts;
use cudarc::driver::{result, sys};
use numbered::{Handle, Numbered, lock};
use staging::Ring;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A stream of a device, and the staging ring of its small copies from the host.
struct OwnStream {
    device: usize,
    handle: Handle<sys::CUstream>,
    ring: Mutex<Option<Ring>>,
}

/// All GPUs of this machine that the driver lists; the primary context of each is opened at its first use.
pub struct Gpu {
    devices: Vec<ProbedDevice>,
    contexts: &'static Contexts,
    streams: Numbered<Arc<OwnStream>>,
    events: Numbered<(usize, Handle<sys::CUevent>)>,
    graphs: Numbered<(usize, Handle<sys::CUgraphExec>)>,
    /// The number of captures under way. While there is none, no stream needs to be asked, which every call of NCCL would do.
    captures: AtomicUsize,
}

impl Gpu {
    /// All devices of the driver, with no context opened yet.
    ///
    /// # Errors
    /// The errors of [`probe()`].
    pub fn open() -> Result<Arc<dyn CudaMachine>> {
        let devices = probe()?.devices;
        let contexts = Contexts::of_process(devices.len());
        let (streams, events, graphs, captures) = Default::default();
        let gpu = Gpu { devices, contexts, streams, events, graphs, captures };
        if gpu.seeded(14) {
            (0..gpu.devices.len()).try_for_each(|device| gpu.enter(device))?;
        }
        Ok(Arc::new(gpu))
    }

    /// Makes a device's context current for the calling thread.
    fn enter(&self, device: usize) -> Result<()> {
        self.contexts.enter(device)
    }

    /// [`Gpu::enter`], except where a test puts back defect 18 of `docs/GPU.md`, which left this call out.
    fn enter_too(&self, device: usize) -> Result<()> {
        if self.seeded(18) { Ok(()) } else { self.enter(device) }
    }

    fn own(&self, stream: CudaStream) -> Result<Arc<OwnStream>> {
        let found = self.streams.get(stream.0);
        found.ok_or_else(|| {
            Error::Argument(format!("stream {} is destroyed, or of another machine", stream.0))
        })
    }

    /// The driver's handle of a stream; makes the stream's device current for the calling thread.
    fn at(&self, stream: CudaStream) -> Result<sys::CUstream> {
        let own = self.own(stream)?;
        self.enter(own.device)?;
        Ok(own.handle.0)
    }

    fn of_event(&self, event: CudaEvent) -> Result<(usize, sys::CUevent)> {
        let found = self.events.get(event.0);
        let found = found.ok_or_else(|| {
            Error::Argument(format!("event {} is destroyed, or of another machine", event.0))
        })?;
        Ok((found.0, found.1.0))
    }

    /// Destroys an object of a device that is no longer needed, in the device's context. An error here belongs to earlier work and is
    /// returned by the next call that waits for this work.
    fn destroy(&self, device: usize, destroy: impl FnOnce() -> std::result::Result<(), result::DriverError>) {
        if self.enter_too(device).is_ok() {
            let _ = destroy();
        }
    }

    /// Keeps a new stream of a device.
    fn kept(&self, device: usize, stream: sys::CUstream) -> CudaStream {
        let own = OwnStream { device, handle: Handle(stream), ring: Mutex::default() };
        CudaStream(self.streams.add(Arc::new(own)))
    }

    /// A new event with these flags, recorded on a stream.
    fn recorded(&self, stream: CudaStream, flags: sys::CUevent_flags) -> Result<CudaEvent> {
        let device = self.own(stream)?.device;
        let stream = self.at(stream)?;
        let event = driver("make an event", result::event::create(flags))?;
        // SAFETY: the event and the stream are live.
        if let Err(error) = driver("record an event", unsafe { result::event::record(event, stream) }) {
            // SAFETY: the event was made above, and no other code holds it.
            let _ = unsafe { result::event::destroy(event) };
            return Err(error);
        }
        Ok(CudaEvent(self.events.add((device, Handle(event)))))
    }

    fn destroy_stream(&self, own: &OwnStream) {
        self.destroy(own.device, || {
            if let Some(ring) = lock(&own.ring).take() {
                ring.retire(own.device, own.handle.0);
            }
            // SAFETY: the caller removed the stream from the list, so it is destroyed once; the driver still runs its queued work.
            unsafe { result::stream::destroy(own.handle.0) }
        });
    }

    /// The error for too little device memory, with the requested bytes and the free bytes.
    fn out_of_memory(&self, device: usize, wanted: usize) -> Error {
        let (free, total) = result::mem_get_info().unwrap_or_default();
        let answer = format!(
            "CUDA_ERROR_OUT_OF_MEMORY: {wanted} bytes are wanted, {free} of {total} are free on device {device}: use a smaller batch, or end what else uses this GPU (nvidia-smi lists it)"
        );
        Error::Refused { call: "allocate memory", answer }
    }
}

impl CudaMachine for Gpu {
    fn name(&self) -> String {
        self.devices.first().map_or_else(String::new, |device| device.name.clone())
    }

    fn devices(&self) -> usize {
        self.devices.len()
    }

    fn multiprocessors(&self, device: usize) -> u32 {
        self.devices.get(device).map_or(1, |device| device.multiprocessors)
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        self.seeded(8) || self.contexts.reaches(from, to)
    }

    fn identity(&self, device: usize) -> [u8; 16] {
        self.devices.get(device).map_or([0; 16], |device| device.uuid)
    }

    #[cfg(feature = "testing")]
    fn seeded(&self, defect: u8) -> bool {
        super::seeded::is_seeded(defect)
    }

    fn stream(&self, device: usize) -> Result<CudaStream> {
        self.enter(device)?;
        let stream =
            driver("make a stream", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        Ok(self.kept(device, stream))
    }

    fn urgent_stream(&self, device: usize) -> Result<CudaStream> {
        self.enter(device)?;
        let (mut least, mut greatest, mut stream) = (0, 0, std::ptr::null_mut());
        // SAFETY: the call writes two integers.
        let range = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
        driver("tell its priorities", range.result())?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the call writes one handle.
        let made = unsafe { sys::cuStreamCreateWithPriority(&mut stream, flags, greatest) };
        driver("make a stream", made.result())?;
        Ok(self.kept(device, stream))
    }

    fn retire_stream(&self, stream: CudaStream) {
        if self.seeded(20) {
            return;
        }
        if let Some(own) = self.streams.take(stream.0) {
            self.destroy_stream(&own);
        }
    }

    fn retire_event(&self, event: CudaEvent) {
        if self.seeded(20) {
            return;
        }
        if let Some((device, event)) = self.events.take(event.0) {
            // SAFETY: the event was removed from the list, so it is destroyed once; streams that already wait for it still do.
            self.destroy(device, || unsafe { result::event::destroy(event.0) });
        }
    }

    fn native(&self, stream: CudaStream) -> Result<u64> {
        self.at(stream).map(|handle| handle as u64)
    }

    fn acquire(&self, device: usize, bytes: usize) -> Result<u64> {
        self.enter(device)?;
        // SAFETY: the memory is uninitialised, as the trait method documents.
        match unsafe { result::malloc_sync(bytes.max(1)) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Err(self.out_of_memory(device, bytes))
            }
            answer => driver("allocate memory", answer),
        }
    }

    unsafe fn release(&self, device: usize, address: u64) {
        if self.enter(device).is_ok() {
            // SAFETY: the caller meets the conditions of the [`CudaMachine`] method. An error here belongs to earlier work and is
            // returned by the next call that waits for this work.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    fn share_memory(&self, device: usize, address: u64) -> Result<IpcHandle> {
        self.memory_handle(device, address)
    }

    fn open_memory(&self, device: usize, handle: &IpcHandle) -> Result<u64> {
        self.memory_of(device, handle)
    }

    unsafe fn close_memory(&self, device: usize, address: u64) {
        // SAFETY: the caller meets the conditions of the [`CudaMachine`] method. An error here belongs to earlier work.
        self.destroy(device, || unsafe { sys::cuIpcCloseMemHandle(address) }.result());
    }

    fn share_event(&self, device: usize) -> Result<(CudaEvent, IpcHandle)> {
        self.event_handle(device)
    }

    fn open_event(&self, device: usize, handle: &IpcHandle) -> Result<CudaEvent> {
        self.event_of(device, handle)
    }

    fn pin(&self, device: usize, bytes: usize) -> Result<u64> {
        self.enter(device)?;
        let portable = sys::CU_MEMHOSTALLOC_PORTABLE;
        // The driver refuses to allocate 0 bytes.
        let bytes = if self.seeded(22) { bytes } else { bytes.max(1) };
        // SAFETY: the host memory is uninitialised, as the trait method documents.
        let pinned = unsafe { result::malloc_host(bytes, portable) };
        driver("pin memory of the host", pinned).map(|address| address as u64)
    }

    unsafe fn unpin(&self, address: u64) {
        // Any open context can be used: memory is pinned only once a context is open.
        if self.contexts.enter_any().is_ok() {
            // SAFETY: the caller meets the conditions of the [`CudaMachine`] method.
            let _ = unsafe { result::free_host(address as *mut _) };
        }
    }

    unsafe fn copy_from_pinned(&self, stream: CudaStream, into: u64, from: u64, bytes: usize) -> Result<()> {
        let stream = self.at(stream)?;
        // SAFETY: the caller guarantees that `bytes` bytes are at `from` and stay until the device has read them.
        let from = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
        // SAFETY: the caller guarantees that both ranges are valid until the stream has run the copy.
        driver("copy to the device", unsafe { result::memcpy_htod_async(into, from, stream) })
    }

    unsafe fn write(&self, stream: CudaStream, into: u64, from: &[u8]) -> Result<()> {
        let own = self.own(stream)?;
        let handle = own.handle.0;
        if self.captures(stream)? {
            return Err(Error::Argument(
                "a captured copy cannot read the host's own memory, which may be changed or freed before a replay: copy before the capture begins, or from pinned memory".into(),
            ));
        }
        if self.seeded(15) {
            // SAFETY: the caller guarantees both ranges; `from` may be reused too early, which is the seeded defect.
            return driver("copy to the device", unsafe { result::memcpy_htod_async(into, from, handle) });
        }
        if from.len() <= staging::QUARTER {
            let mut ring = lock(&own.ring);
            let ring = match &mut *ring {
                Some(ring) => ring,
                none => none.insert(Ring::new(own.device)?),
            };
            // SAFETY: the stream is live and its context is current; the caller guarantees the bytes at `into`.
            return unsafe { ring.write(handle, into, from) };
        }
        // SAFETY: the caller guarantees the bytes at `into`; `from` stays borrowed until the stream is finished.
        driver("copy to the device", unsafe { result::memcpy_htod_async(into, from, handle) })?;
        // SAFETY: the stream is live.
        driver("finish a stream", unsafe { result::stream::synchronize(handle) })
    }

    unsafe fn read(&self, stream: CudaStream, into: &mut [u8], from: u64) -> Result<()> {
        let stream = self.at(stream)?;
        // SAFETY: the caller guarantees the bytes at `from`; `into` stays borrowed until the stream is finished.
        driver("copy from the device", unsafe { result::memcpy_dtoh_async(into, from, stream) })?;
        // SAFETY: the stream is live.
        driver("finish a stream", unsafe { result::stream::synchronize(stream) })
    }

    unsafe fn copy(&self, stream: CudaStream, into: u64, from: u64, bytes: usize) -> Result<()> {
        let stream = self.at(stream)?;
        // SAFETY: the caller guarantees both ranges. Addresses are unified, so this copies between devices too.
        driver("copy on the device", unsafe { sys::cuMemcpyAsync(into, from, bytes, stream) }.result())
    }

    unsafe fn fill(&self, stream: CudaStream, into: u64, bytes: usize, value: u8) -> Result<()> {
        let stream = self.at(stream)?;
        // SAFETY: the caller meets the conditions of the [`CudaMachine`] method.
        driver("fill memory", unsafe { result::memset_d8_async(into, value, bytes, stream) })
    }

    unsafe fn launch(&self, stream: CudaStream, launch: &Launch) -> Result<()> {
        let ordinal = self.own(stream)?.device;
        let device = self.devices.get(ordinal).ok_or_else(|| Error::Argument(format!("no GPU {ordinal}")))?;
        let seeded = |defect| self.seeded(defect);
        let function = modules::function(self.contexts, (ordinal, device), &launch.kernel, seeded)?;
        let stream = self.at(stream)?;
        let mut arguments = launch.arguments.clone();
        let mut pointers = arguments.pointers();
        let [x, y, z] = launch.grid;
        // SAFETY: the caller guarantees the arguments; the driver copies them before it returns.
        driver("launch a kernel", unsafe {
            result::launch_kernel(function, (x, y, z), (THREADS, 1, 1), 0, stream, &mut pointers)
        })
    }

    fn record(&self, stream: CudaStream) -> Result<CudaEvent> {
        self.recorded(stream, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn mark(&self, stream: CudaStream) -> Result<CudaEvent> {
        self.recorded(stream, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn record_again(&self, event: CudaEvent, stream: CudaStream) -> Result<()> {
        let (event, stream) = (self.of_event(event)?.1, self.at(stream)?);
        // SAFETY: the event and the stream are live.
        driver("record an event", unsafe { result::event::record(event, stream) })
    }

    fn wait(&self, stream: CudaStream, event: CudaEvent) -> Result<()> {
        let (event, stream) = (self.of_event(event)?.1, self.at(stream)?);
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: the event and the stream are live.
        driver("wait for an event", unsafe { result::stream::wait_event(stream, event, flags) })
    }

    fn finish(&self, stream: CudaStream) -> Result<()> {
        let stream = self.at(stream)?;
        // SAFETY: the stream is live.
        driver("finish a stream", unsafe { result::stream::synchronize(stream) })
    }

    fn idle(&self, stream: CudaStream) -> Result<bool> {
        let stream = self.at(stream)?;
        // SAFETY: the stream is live.
        match unsafe { sys::cuStreamQuery(stream) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => driver("query a stream", answer.result()).map(|()| true),
        }
    }

    fn synchronize(&self, event: CudaEvent) -> Result<()> {
        let (device, event) = self.of_event(event)?;
        self.enter_too(device)?;
        // SAFETY: the event is live.
        driver("wait for an event", unsafe { result::event::synchronize(event) })
    }

    fn between(&self, from: CudaEvent, to: CudaEvent) -> Result<u64> {
        let ((_, from), (device, to)) = (self.of_event(from)?, self.of_event(to)?);
        self.enter_too(device)?;
        // SAFETY: the event is live.
        driver("wait for an event", unsafe { result::event::synchronize(to) })?;
        // SAFETY: both events are live and have happened.
        let milliseconds = driver("time two events", unsafe { result::event::elapsed(from, to) })?;
        Ok((f64::from(milliseconds) * 1e6) as u64)
    }

    fn begin_capture(&self, stream: CudaStream) -> Result<()> {
        let stream = self.at(stream)?;
        // Relaxed mode allows loading a kernel, at its first launch, during the capture; the loading is not part of the graph.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is live.
        driver("begin a capture", unsafe { result::stream::begin_capture(stream, mode) })?;
        self.captures.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn captures(&self, stream: CudaStream) -> Result<bool> {
        let stream = self.at(stream)?;
        // A thread whose stream joins a capture has seen the event by which it joins, and with it this count.
        if self.captures.load(Ordering::Relaxed) == 0 {
            return Ok(false);
        }
        // SAFETY: the stream is live.
        let status = driver("query a stream", unsafe { result::stream::is_capturing(stream) })?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    fn end_capture(&self, stream: CudaStream) -> Result<CudaGraph> {
        let device = self.own(stream)?.device;
        let stream = self.at(stream)?;
        // SAFETY: the stream is live and its capture was begun.
        let ended = driver("end a capture", unsafe { result::stream::end_capture(stream) });
        self.captures.fetch_sub(1, Ordering::Relaxed);
        let graph = ended?;
        let plain = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph is the driver's, and is destroyed once, after it was instantiated.
        let made = unsafe {
            let made = result::graph::instantiate(graph, plain);
            let _ = result::graph::destroy(graph);
            made
        };
        let made = driver("instantiate a graph", made)?;
        Ok(CudaGraph(self.graphs.add((device, Handle(made)))))
    }

    unsafe fn replay(&self, stream: CudaStream, graph: CudaGraph) -> Result<()> {
        let made = self.graphs.get(graph.0);
        let (_, made) = made.ok_or_else(|| Error::Argument(format!("graph {} was destroyed", graph.0)))?;
        let stream = self.at(stream)?;
        // SAFETY: the graph and the stream are live; the caller guarantees the memory.
        driver("launch a graph", unsafe { result::graph::launch(made.0, stream) })
    }

    fn forget(&self, graph: CudaGraph) {
        if let Some((device, made)) = self.graphs.take(graph.0) {
            // SAFETY: the graph was removed from the list, so it is destroyed once; the driver waits for a launch in flight.
            self.destroy(device, || unsafe { result::graph::exec_destroy(made.0) });
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        for (device, graph) in self.graphs.drain() {
            // SAFETY: every graph is destroyed once, here.
            self.destroy(device, || unsafe { result::graph::exec_destroy(graph.0) });
        }
        for (device, event) in self.events.drain() {
            // SAFETY: every event is destroyed once, here.
            self.destroy(device, || unsafe { result::event::destroy(event.0) });
        }
        self.streams.drain().iter().for_each(|own| self.destroy_stream(own));
    }
}
