//! The machine that is a GPU, or several: cudarc's driver calls, with the kernels compiled and loaded as they are needed.

use super::compile::compile_for;
use super::error::driver;
use super::machine::{Event, Graph, Launch, Machine, Stream, THREADS};
use super::{Device, Error, Family, Kernel, Result, probe};
use crate::DType;
use cudarc::driver::{result, sys};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A handle of the driver. They are pointers, and may be used from any thread.
#[derive(Clone, Copy)]
struct Handle<T>(T);

// SAFETY: the driver's handles are shared between threads; the driver locks what must be locked.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

type ModuleKey = (usize, Family, Option<DType>);

#[derive(Default)]
struct Loaded {
    modules: BTreeMap<ModuleKey, Handle<sys::CUmodule>>,
    functions: BTreeMap<(usize, Kernel), Handle<sys::CUfunction>>,
}

/// All GPUs of this machine that the driver lists, each with its primary context.
pub struct Gpu {
    devices: Vec<Device>,
    contexts: Vec<Handle<sys::CUcontext>>,
    streams: Mutex<Vec<(usize, Handle<sys::CUstream>)>>,
    events: Mutex<Vec<(usize, Handle<sys::CUevent>)>>,
    graphs: Mutex<Vec<Option<Handle<sys::CUgraphExec>>>>,
    loaded: Mutex<Loaded>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is only ever added to: a panic leaves it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// Opens every device, and lets those that can read each other's memory do so.
    ///
    /// # Errors
    /// As [`probe()`].
    pub fn open() -> Result<Arc<dyn Machine>> {
        let devices = probe()?.devices;
        let mut contexts = Vec::new();
        for ordinal in 0..devices.len() {
            let device = driver("open a device", result::device::get(ordinal as i32))?;
            // SAFETY: a device that the driver gave; released when the program ends.
            let context = unsafe { result::primary_ctx::retain(device) };
            contexts.push(Handle(driver("make a context", context)?));
        }
        let gpu = Gpu {
            devices,
            contexts,
            streams: Mutex::default(),
            events: Mutex::default(),
            graphs: Mutex::default(),
            loaded: Mutex::default(),
        };
        gpu.befriend()?;
        Ok(Arc::new(gpu))
    }

    fn befriend(&self) -> Result<()> {
        for (a, _) in self.contexts.iter().enumerate() {
            self.enter(a)?;
            for (b, context) in self.contexts.iter().enumerate().filter(|(b, _)| *b != a) {
                let (mut can, a, b) = (0, a as i32, b as i32);
                // SAFETY: ordinals that the driver counted; a place for one integer.
                let answer = unsafe { sys::cuDeviceCanAccessPeer(&mut can, a, b) };
                driver("tell whether devices reach each other", answer.result())?;
                if can == 1 {
                    // SAFETY: a live context; a second time is answered with an error that does not matter.
                    let answer = unsafe { sys::cuCtxEnablePeerAccess(context.0, 0) };
                    if answer != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
                        driver("let a device reach another", answer.result())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes a device the calling thread's.
    fn enter(&self, device: usize) -> Result<()> {
        let context = self.contexts.get(device);
        let context = context.ok_or_else(|| Error::Argument(format!("device {device}")))?;
        // SAFETY: a live context.
        driver("enter a context", unsafe { result::ctx::set_current(context.0) })
    }

    fn at(&self, stream: Stream) -> Result<sys::CUstream> {
        let found = lock(&self.streams).get(stream.0 as usize).copied();
        let (device, handle) =
            found.ok_or_else(|| Error::Argument(format!("stream {} of another machine", stream.0)))?;
        self.enter(device)?;
        Ok(handle.0)
    }

    fn device_of(&self, stream: Stream) -> usize {
        lock(&self.streams).get(stream.0 as usize).map_or(0, |found| found.0)
    }

    fn event(&self, event: Event) -> Result<sys::CUevent> {
        let found = lock(&self.events).get(event.0 as usize).copied();
        let found = found.ok_or_else(|| Error::Argument(format!("event {} of another machine", event.0)))?;
        Ok(found.1.0)
    }

    /// A kernel of a device, compiled and loaded if it was not yet.
    fn function(&self, device: usize, kernel: &Kernel) -> Result<sys::CUfunction> {
        let mut loaded = lock(&self.loaded);
        if let Some(function) = loaded.functions.get(&(device, kernel.clone())) {
            return Ok(function.0);
        }
        let key = (device, kernel.family, kernel.dtype);
        let module = match loaded.modules.get(&key) {
            Some(module) => *module,
            None => {
                let image = compile_for(kernel.family, kernel.dtype, self.devices[device].arch)?;
                self.enter(device)?;
                // SAFETY: an image that NVRTC made; PTX comes with its closing zero.
                let module = unsafe { result::module::load_data(image.as_ptr().cast()) };
                let module = Handle(driver("load a module", module)?);
                loaded.modules.insert(key, module);
                module
            }
        };
        let name = CString::new(kernel.name.as_str())
            .map_err(|_| Error::Argument("a kernel's name with a zero byte".into()))?;
        // SAFETY: a live module: none is ever unloaded.
        let function = unsafe { result::module::get_function(module.0, name) };
        let function = driver("find a kernel in its module", function)?;
        loaded.functions.insert((device, kernel.clone()), Handle(function));
        Ok(function)
    }
}

impl Machine for Gpu {
    fn name(&self) -> String {
        self.devices.first().map_or_else(String::new, |device| device.name.clone())
    }

    fn devices(&self) -> usize {
        self.devices.len()
    }

    fn multiprocessors(&self, device: usize) -> u32 {
        self.devices.get(device).map_or(1, |device| device.multiprocessors)
    }

    fn stream(&self, device: usize) -> Result<Stream> {
        self.enter(device)?;
        let stream =
            driver("make a stream", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        let mut streams = lock(&self.streams);
        streams.push((device, Handle(stream)));
        Ok(Stream(streams.len() as u32 - 1))
    }

    fn native(&self, stream: Stream) -> Result<u64> {
        self.at(stream).map(|handle| handle as u64)
    }

    fn acquire(&self, device: usize, bytes: usize) -> Result<u64> {
        self.enter(device)?;
        // SAFETY: the memory's content is undefined, and said to be.
        driver("allocate memory", unsafe { result::malloc_sync(bytes.max(1)) })
    }

    unsafe fn release(&self, device: usize, address: u64) {
        if self.enter(device).is_ok() {
            // SAFETY: the caller's promise. An error here is one of the work before, which whoever waits for it is told.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    fn pin(&self, device: usize, bytes: usize) -> Result<u64> {
        self.enter(device)?;
        let portable = sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: memory of the host whose content is undefined, and said to be.
        let pinned = unsafe { result::malloc_host(bytes, portable) };
        driver("pin memory of the host", pinned).map(|address| address as u64)
    }

    unsafe fn unpin(&self, address: u64) {
        if self.enter(0).is_ok() {
            // SAFETY: the caller's promise.
            let _ = unsafe { result::free_host(address as *mut _) };
        }
    }

    unsafe fn fetch(&self, stream: Stream, into: u64, from: u64, bytes: usize) -> Result<()> {
        let stream = self.at(stream)?;
        // SAFETY: the caller's promise: as many bytes are there, and stay until they are read.
        let from = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
        // SAFETY: as above.
        driver("copy to the device", unsafe { result::memcpy_htod_async(into, from, stream) })
    }

    unsafe fn write(&self, stream: Stream, into: u64, from: &[u8]) -> Result<()> {
        let stream = self.at(stream)?;
        // SAFETY: the caller's promise; from memory that is not pinned the driver has read all when it returns.
        driver("copy to the device", unsafe { result::memcpy_htod_async(into, from, stream) })
    }

    unsafe fn read(&self, stream: Stream, into: &mut [u8], from: u64) -> Result<()> {
        let stream = self.at(stream)?;
        // SAFETY: the caller's promise, and `into` is not touched before the stream is done.
        driver("copy from the device", unsafe { result::memcpy_dtoh_async(into, from, stream) })?;
        // SAFETY: a live stream.
        driver("finish a stream", unsafe { result::stream::synchronize(stream) })
    }

    unsafe fn copy(&self, stream: Stream, into: u64, from: u64, bytes: usize) -> Result<()> {
        let stream = self.at(stream)?;
        // SAFETY: the caller's promise. Addresses are unified, so this copies between devices too.
        driver("copy on the device", unsafe { sys::cuMemcpyAsync(into, from, bytes, stream) }.result())
    }

    unsafe fn fill(&self, stream: Stream, into: u64, bytes: usize, value: u8) -> Result<()> {
        let stream = self.at(stream)?;
        // SAFETY: the caller's promise.
        driver("fill memory", unsafe { result::memset_d8_async(into, value, bytes, stream) })
    }

    unsafe fn launch(&self, stream: Stream, launch: &Launch) -> Result<()> {
        let function = self.function(self.device_of(stream), &launch.kernel)?;
        let stream = self.at(stream)?;
        let mut arguments = launch.arguments.clone();
        let mut pointers = arguments.pointers();
        let [x, y, z] = launch.grid;
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        driver("launch a kernel", unsafe {
            result::launch_kernel(function, (x, y, z), (THREADS, 1, 1), 0, stream, &mut pointers)
        })
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        let device = self.device_of(stream);
        let stream = self.at(stream)?;
        let event = driver("make an event", result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT))?;
        // SAFETY: both are live.
        driver("record an event", unsafe { result::event::record(event, stream) })?;
        let mut events = lock(&self.events);
        events.push((device, Handle(event)));
        Ok(Event(events.len() as u32 - 1))
    }

    fn record_again(&self, event: Event, stream: Stream) -> Result<()> {
        let (event, stream) = (self.event(event)?, self.at(stream)?);
        // SAFETY: both are live.
        driver("record an event", unsafe { result::event::record(event, stream) })
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        let (event, stream) = (self.event(event)?, self.at(stream)?);
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are live.
        driver("wait for an event", unsafe { result::stream::wait_event(stream, event, flags) })
    }

    fn finish(&self, stream: Stream) -> Result<()> {
        let stream = self.at(stream)?;
        // SAFETY: a live stream.
        driver("finish a stream", unsafe { result::stream::synchronize(stream) })
    }

    fn idle(&self, stream: Stream) -> Result<bool> {
        let stream = self.at(stream)?;
        // SAFETY: a live stream.
        match unsafe { sys::cuStreamQuery(stream) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => driver("ask a stream", answer.result()).map(|()| true),
        }
    }

    fn happened(&self, event: Event) -> Result<()> {
        let event = self.event(event)?;
        // SAFETY: a live event.
        driver("wait for an event", unsafe { result::event::synchronize(event) })
    }

    fn between(&self, from: Event, to: Event) -> Result<u64> {
        let (from, to) = (self.event(from)?, self.event(to)?);
        // SAFETY: both are live.
        driver("wait for an event", unsafe { result::event::synchronize(to) })?;
        // SAFETY: both are live, and have happened.
        let milliseconds = driver("time two events", unsafe { result::event::elapsed(from, to) })?;
        Ok((f64::from(milliseconds) * 1e6) as u64)
    }

    fn begin_capture(&self, stream: Stream) -> Result<()> {
        let stream = self.at(stream)?;
        // Relaxed, since a kernel that is launched for the first time is loaded meanwhile, which is no part of the graph.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: a live stream.
        driver("begin a capture", unsafe { result::stream::begin_capture(stream, mode) })
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph> {
        let stream = self.at(stream)?;
        // SAFETY: a live stream, whose capture was begun.
        let graph = driver("end a capture", unsafe { result::stream::end_capture(stream) })?;
        let plain = sys::CUgraphInstantiate_flags(0);
        // SAFETY: a graph that the driver made; instantiated, it is needed no more.
        let made = unsafe {
            let made = result::graph::instantiate(graph, plain);
            let _ = result::graph::destroy(graph);
            made
        };
        let made = driver("instantiate a graph", made)?;
        let mut graphs = lock(&self.graphs);
        graphs.push(Some(Handle(made)));
        Ok(Graph(graphs.len() as u32 - 1))
    }

    unsafe fn replay(&self, stream: Stream, graph: Graph) -> Result<()> {
        let made = lock(&self.graphs).get(graph.0 as usize).copied().flatten();
        let made = made.ok_or_else(|| Error::Argument(format!("graph {} is no more", graph.0)))?;
        let stream = self.at(stream)?;
        // SAFETY: both are live; the memory is the caller's promise.
        driver("launch a graph", unsafe { result::graph::launch(made.0, stream) })
    }

    fn forget(&self, graph: Graph) {
        if let Some(made) = lock(&self.graphs).get_mut(graph.0 as usize).and_then(Option::take) {
            // SAFETY: taken out, so destroyed once; the driver waits for a launch that is under way.
            let _ = unsafe { result::graph::exec_destroy(made.0) };
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        for graph in lock(&self.graphs).drain(..).flatten() {
            // SAFETY: each is destroyed once, here.
            let _ = unsafe { result::graph::exec_destroy(graph.0) };
        }
        for (device, event) in lock(&self.events).drain(..) {
            if self.enter(device).is_ok() {
                // SAFETY: as above.
                let _ = unsafe { result::event::destroy(event.0) };
            }
        }
        for (device, stream) in lock(&self.streams).drain(..) {
            if self.enter(device).is_ok() {
                // SAFETY: as above.
                let _ = unsafe { result::stream::destroy(stream.0) };
            }
        }
    }
}
