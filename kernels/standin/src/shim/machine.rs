//! The shim as a [`CudaMachine`].

use super::foreign::Foreign;
use super::library;
use super::memory::Blocks;
use super::options::{FiberOrder, ShimOptions};
use super::streams::Streams;
use super::work::{Runner, Work};
use allfold_base::lock;
use allfold_cuda::{CudaEvent, CudaGraph, CudaMachine, CudaStream, Error, Launch, Result};
use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A CPU that runs CUDA kernels slowly and by the driver's rules.
pub struct Shim {
    options: ShimOptions,
    streams: Mutex<Streams>,
    /// The error of a release of memory, which cannot return an error; every later copy, fill and launch returns it.
    lost: Mutex<Option<Error>>,
}

impl Shim {
    /// A shim with one device, whose fibres run in this order.
    ///
    /// # Errors
    /// The errors of [`Shim::with`].
    pub fn open(order: FiberOrder) -> Result<Arc<dyn CudaMachine>> {
        Shim::with(ShimOptions { order, ..ShimOptions::default() })
    }

    /// Compiles the kernels (some seconds, once per version of the sources), loads them and makes a shim.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's message, or that no compiler is installed.
    pub fn with(options: ShimOptions) -> Result<Arc<dyn CudaMachine>> {
        library::loaded()?;
        let runner = Runner { order: options.order, audit: options.audit };
        let streams = Streams::new(runner, Blocks::new(options.memory, options.peers));
        Ok(Arc::new(Shim { options, streams: Mutex::new(streams), lost: Mutex::default() }))
    }

    /// A machine as a shim; `None` for a GPU.
    pub fn of(machine: &dyn CudaMachine) -> Option<&Shim> {
        (machine as &dyn Any).downcast_ref()
    }

    /// The options that the shim was made with.
    pub fn options(&self) -> &ShimOptions {
        &self.options
    }

    /// The numbers of streams and of events that are not destroyed.
    pub fn live(&self) -> (usize, usize) {
        self.state().live()
    }

    /// Queues work of a foreign library on a stream.
    ///
    /// # Errors
    /// The errors of [`CudaMachine::launch`].
    pub fn give_foreign(&self, stream: CudaStream, foreign: Foreign) -> Result<()> {
        self.give(stream, Work::Foreign(foreign))
    }

    fn state(&self) -> MutexGuard<'_, Streams> {
        lock(&self.streams)
    }

    fn give(&self, stream: CudaStream, work: Work) -> Result<()> {
        match lock(&self.lost).clone() {
            Some(error) => Err(error),
            None => self.state().give(stream.0, work),
        }
    }

    /// Calls `ready` until it is true or the timeout has passed; other threads may queue work in the meantime.
    #[allow(clippy::disallowed_methods, reason = "what waits here waits for other threads, in real time")]
    fn until(&self, call: &'static str, ready: impl Fn(&mut Streams) -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !ready(&mut self.state())? {
            if begun.elapsed() > self.options.timeout {
                let answer =
                    format!("a hang: the host has waited {:?} without a deadline", self.options.timeout);
                return Err(Error::Refused { call, answer });
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

impl CudaMachine for Shim {
    fn name(&self) -> String {
        "the CPU shim".into()
    }

    fn devices(&self) -> usize {
        self.options.devices
    }

    /// A small number, so that grids are small and kernels stride over them.
    fn multiprocessors(&self, _device: usize) -> u32 {
        1
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        from == to || self.options.peers
    }

    fn identity(&self, device: usize) -> [u8; 16] {
        if self.options.one_gpu { [0; 16] } else { (device as u128).to_le_bytes() }
    }

    fn seeded(&self, defect: u8) -> bool {
        self.options.seeded.contains(&defect)
    }

    fn stream(&self, device: usize) -> Result<CudaStream> {
        Ok(CudaStream(self.state().create(device)))
    }

    fn retire_stream(&self, stream: CudaStream) {
        self.state().retire(stream.0);
    }

    fn retire_event(&self, event: CudaEvent) {
        self.state().retire_event(event.0);
    }

    fn native(&self, _stream: CudaStream) -> Result<u64> {
        Err(Error::Argument("the CPU shim has no streams of CUDA's".into()))
    }

    fn acquire(&self, device: usize, bytes: usize) -> Result<u64> {
        self.state().blocks.acquire(Some(device), bytes)
    }

    /// Waits for all work of the device first, as the driver does.
    unsafe fn release(&self, _device: usize, address: u64) {
        let Some((bytes, device)) = self.state().blocks.find(address) else { return };
        let waited = match device {
            Some(device) => self.until("give memory back", |streams| streams.device_idle(device)),
            None => Ok(()),
        };
        let mut state = self.state();
        let raced = waited.and_then(|()| match device {
            Some(_) => state.races.release(address, bytes as u64).map_err(Error::Race),
            None => Ok(()),
        });
        match raced {
            Ok(()) => state.blocks.release(address),
            // The memory is not freed, since other users may still access it.
            Err(error) => {
                lock(&self.lost).get_or_insert(error);
            }
        }
    }

    fn pin(&self, _device: usize, bytes: usize) -> Result<u64> {
        self.state().blocks.acquire(None, bytes)
    }

    unsafe fn unpin(&self, address: u64) {
        // SAFETY: the caller guarantees that the address is from `pin`, whose memory is in the same list as device memory.
        unsafe { self.release(0, address) };
    }

    unsafe fn copy_from_pinned(&self, stream: CudaStream, into: u64, from: u64, bytes: usize) -> Result<()> {
        self.give(stream, Work::Copy { into, from, bytes })
    }

    unsafe fn write(&self, stream: CudaStream, into: u64, from: &[u8]) -> Result<()> {
        self.give(stream, Work::Upload { into, bytes: from.into() })
    }

    unsafe fn read(&self, stream: CudaStream, into: &mut [u8], from: u64) -> Result<()> {
        self.state().read(stream.0, from, into.len())?;
        self.finish(stream)?;
        // SAFETY: the caller guarantees that the bytes at `from` are acquired memory.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    unsafe fn copy(&self, stream: CudaStream, into: u64, from: u64, bytes: usize) -> Result<()> {
        self.give(stream, Work::Copy { into, from, bytes })
    }

    unsafe fn fill(&self, stream: CudaStream, into: u64, bytes: usize, value: u8) -> Result<()> {
        self.give(stream, Work::Fill { into, bytes, value })
    }

    unsafe fn launch(&self, stream: CudaStream, launch: &Launch) -> Result<()> {
        self.give(stream, Work::Launch(Arc::new(launch.clone())))
    }

    fn record(&self, stream: CudaStream) -> Result<CudaEvent> {
        self.state().record(stream.0).map(CudaEvent)
    }

    fn record_again(&self, event: CudaEvent, stream: CudaStream) -> Result<()> {
        self.state().record_again(event.0, stream.0)
    }

    fn wait(&self, stream: CudaStream, event: CudaEvent) -> Result<()> {
        self.state().wait(stream.0, event.0)
    }

    fn finish(&self, stream: CudaStream) -> Result<()> {
        const CALL: &str = "finish a stream";
        self.until(CALL, |streams| streams.idle(stream.0, CALL))
    }

    fn idle(&self, stream: CudaStream) -> Result<bool> {
        self.state().idle(stream.0, "query a stream")
    }

    fn synchronize(&self, event: CudaEvent) -> Result<()> {
        self.until("wait for an event", |streams| streams.synchronize(event.0))
    }

    fn between(&self, from: CudaEvent, to: CudaEvent) -> Result<u64> {
        self.synchronize(from)?;
        self.synchronize(to).map(|()| 0)
    }

    fn begin_capture(&self, stream: CudaStream) -> Result<()> {
        self.state().begin_capture(stream.0)
    }

    fn captures(&self, stream: CudaStream) -> Result<bool> {
        self.state().captures(stream.0)
    }

    fn end_capture(&self, stream: CudaStream) -> Result<CudaGraph> {
        self.state().end_capture(stream.0).map(CudaGraph)
    }

    unsafe fn replay(&self, stream: CudaStream, graph: CudaGraph) -> Result<()> {
        self.state().replay(stream.0, graph.0)
    }

    fn forget(&self, graph: CudaGraph) {
        self.state().forget(graph.0);
    }
}
