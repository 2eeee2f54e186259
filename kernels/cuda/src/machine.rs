//! The machine that runs kernels: a GPU, or the CPU shim of the tests. This is the interface underneath [`super::Queue`], in raw
//! addresses.

use super::{Kernel, Result};
use bytemuck::Pod;
use std::any::Any;

/// Threads per block: every kernel is written for this number.
pub const THREADS: u32 = 256;

/// The number of a stream, a queue of work on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaStream(pub u32);

/// The number of an event, a point in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaEvent(pub u32);

/// The number of a graph: captured work that can be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaGraph(pub u32);

/// What another process of this host needs to open memory or an event: the driver's handle.
pub type IpcHandle = [u8; 64];

/// A kernel launch: the kernel, its grid and its arguments.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel to run.
    pub kernel: Kernel,
    /// The number of blocks along x, y and z.
    pub grid: [u32; 3],
    /// The kernel's arguments.
    pub arguments: Arguments,
}

/// A range of device memory that a task reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAccess {
    /// The address of the first byte.
    pub address: u64,
    /// The length of the range in bytes.
    pub bytes: u64,
    /// Whether the task writes the range; it may then read the range too.
    pub write: bool,
}

/// A kernel's arguments in order, by value, and the memory that the kernel reads and writes.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// The arguments' bytes, stored in words so that every argument is aligned.
    words: Vec<u64>,
    starts: Vec<usize>,
    accesses: Vec<MemoryAccess>,
}

impl Arguments {
    /// An empty argument list.
    pub fn new() -> Arguments {
        Arguments::default()
    }

    /// Adds an argument. `T` must be the type that the kernel declares; an address is a u64.
    pub fn with<T: Pod>(mut self, value: T) -> Arguments {
        let bytes = bytemuck::bytes_of(&value);
        let start = self.words.len();
        self.starts.push(start);
        self.words.resize(start + bytes.len().div_ceil(8), 0);
        bytemuck::cast_slice_mut(&mut self.words[start..])[..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Records memory ranges that the kernel reads or writes, without passing an argument.
    pub(super) fn notes(mut self, accesses: impl IntoIterator<Item = MemoryAccess>) -> Arguments {
        self.accesses.extend(accesses);
        self
    }

    /// The memory ranges recorded so far as read or written by the kernel.
    pub fn accesses(&self) -> &[MemoryAccess] {
        &self.accesses
    }

    /// A pointer to each argument. The pointers are valid until `self` is moved or changed.
    pub fn pointers(&mut self) -> Vec<*mut std::ffi::c_void> {
        let Arguments { words, starts, .. } = self;
        starts.iter().map(|start| words[*start..].as_mut_ptr().cast()).collect()
    }
}

/// A machine with device memory and kernels. Work of one stream runs in order; work of different streams runs concurrently unless
/// an event orders it.
///
/// Methods that take addresses are `unsafe`, since an address is only a number; [`super::Queue`] is the safe interface.
pub trait CudaMachine: Any + Send + Sync {
    /// The machine's name in messages.
    fn name(&self) -> String;
    /// The number of devices.
    fn devices(&self) -> usize;
    /// The number of multiprocessors of a device, by which grids are sized.
    fn multiprocessors(&self, device: usize) -> u32;
    /// Whether kernels of device `from` can use memory of device `to`.
    fn reaches(&self, from: usize, to: usize) -> bool {
        let _ = (from, to);
        true
    }
    /// The device's UUID, which is unique on this host and equal in every process.
    fn identity(&self, device: usize) -> [u8; 16] {
        (device as u128).to_le_bytes()
    }
    /// Whether a test has put back the mended defect number `defect` of `docs/GPU.md`. Always false without the feature `testing`.
    fn seeded(&self, defect: u8) -> bool {
        let _ = defect;
        false
    }
    /// Counts a call of a library by its operands; false, and nothing happens, on a machine that runs its calls.
    fn counted_call(&self, call: &'static str, accesses: &[MemoryAccess]) -> bool {
        let _ = (call, accesses);
        false
    }
    /// Creates a stream on a device.
    ///
    /// # Errors
    /// The driver's error.
    fn stream(&self, device: usize) -> Result<CudaStream>;
    /// Creates a stream whose kernels are scheduled before those of other streams, if the machine has priorities.
    ///
    /// # Errors
    /// The driver's error.
    fn urgent_stream(&self, device: usize) -> Result<CudaStream> {
        self.stream(device)
    }
    /// Destroys a stream that is no longer used. Work queued on the stream still runs.
    fn retire_stream(&self, stream: CudaStream) {
        let _ = stream;
    }
    /// Destroys an event that no later call waits for.
    fn retire_event(&self, event: CudaEvent) {
        let _ = event;
    }
    /// The driver's handle of a stream, for libraries that need it. Makes the stream's device current for the calling thread.
    ///
    /// # Errors
    /// [`super::Error::Argument`] on a machine without such handles.
    fn native(&self, stream: CudaStream) -> Result<u64>;
    /// Allocates device memory, 256-byte aligned, of undefined content.
    ///
    /// # Errors
    /// The driver's error, such as too little free memory.
    fn acquire(&self, device: usize, bytes: usize) -> Result<u64>;
    /// Frees device memory.
    ///
    /// # Safety
    /// `address` comes from [`CudaMachine::acquire`], and no work in flight uses the memory.
    unsafe fn release(&self, device: usize, address: u64);
    /// The handle by which other processes of this host open memory, all of which must close it before it is released.
    ///
    /// # Errors
    /// [`super::Error::Argument`] on a machine of one process; the driver's error, such as of a part of a GPU (MIG), which shares nothing.
    fn share_memory(&self, device: usize, address: u64) -> Result<IpcHandle> {
        let _ = (device, address);
        Err(self.of_one_process())
    }
    /// Opens memory of another process for a device, and returns its address here.
    ///
    /// # Errors
    /// Those of [`CudaMachine::share_memory`]; memory that the device does not reach, or of a process in another container.
    fn open_memory(&self, device: usize, handle: &IpcHandle) -> Result<u64> {
        let _ = (device, handle);
        Err(self.of_one_process())
    }
    /// Closes memory of another process.
    ///
    /// # Safety
    /// `address` comes from [`CudaMachine::open_memory`], and no work in flight uses the memory.
    unsafe fn close_memory(&self, device: usize, address: u64) {
        let _ = (device, address);
    }
    /// Creates an event of a device that is not recorded yet, and the handle by which other processes of this host open it.
    ///
    /// # Errors
    /// Those of [`CudaMachine::share_memory`].
    fn share_event(&self, device: usize) -> Result<(CudaEvent, IpcHandle)> {
        let _ = device;
        Err(self.of_one_process())
    }
    /// Opens an event of another process.
    ///
    /// # Errors
    /// Those of [`CudaMachine::open_memory`].
    fn open_event(&self, device: usize, handle: &IpcHandle) -> Result<CudaEvent> {
        let _ = (device, handle);
        Err(self.of_one_process())
    }
    /// The error of a machine that shares nothing with other processes.
    fn of_one_process(&self) -> super::Error {
        super::Error::Argument(format!("{} shares no memory with other processes", self.name()))
    }
    /// Allocates page-locked host memory, which the device can read by itself.
    ///
    /// # Errors
    /// The driver's error.
    fn pin(&self, device: usize, bytes: usize) -> Result<u64>;
    /// Frees page-locked host memory.
    ///
    /// # Safety
    /// `address` comes from [`CudaMachine::pin`], and no work in flight reads the memory.
    unsafe fn unpin(&self, address: u64);
    /// Queues a copy from pinned host memory to the device and returns immediately.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// `from` is pinned memory that does not change until the stream has run the copy; `into` is part of acquired memory.
    unsafe fn copy_from_pinned(&self, stream: CudaStream, into: u64, from: u64, bytes: usize) -> Result<()>;
    /// Copies host memory to the device. Returns when `from` may be reused.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// The bytes at `into` are part of acquired memory.
    unsafe fn write(&self, stream: CudaStream, into: u64, from: &[u8]) -> Result<()>;
    /// Copies device memory to the host and waits for the copy.
    ///
    /// # Errors
    /// The driver's error, or the error of earlier work in the stream.
    ///
    /// # Safety
    /// The bytes at `from` are part of acquired memory.
    unsafe fn read(&self, stream: CudaStream, into: &mut [u8], from: u64) -> Result<()>;
    /// Copies memory within a device or between two devices.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// Both ranges are parts of acquired memory, and do not overlap.
    unsafe fn copy(&self, stream: CudaStream, into: u64, from: u64, bytes: usize) -> Result<()>;
    /// Sets every byte of a range to `value`.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// The range is part of acquired memory.
    unsafe fn fill(&self, stream: CudaStream, into: u64, bytes: usize, value: u8) -> Result<()>;
    /// Runs a kernel.
    ///
    /// # Errors
    /// The compiler's or the driver's error.
    ///
    /// # Safety
    /// The arguments have the types that the kernel declares, and all memory that the kernel reads and writes is acquired.
    unsafe fn launch(&self, stream: CudaStream, launch: &Launch) -> Result<()>;
    /// Records an event behind all work that was queued on the stream.
    ///
    /// # Errors
    /// The driver's error.
    fn record(&self, stream: CudaStream) -> Result<CudaEvent>;
    /// Records an event without a time, which orders work for less.
    ///
    /// # Errors
    /// The driver's error.
    fn mark(&self, stream: CudaStream) -> Result<CudaEvent> {
        self.record(stream)
    }
    /// Records an existing event again, at a new point of a stream. No work may still wait for the event's earlier point.
    ///
    /// # Errors
    /// The driver's error.
    fn record_again(&self, event: CudaEvent, stream: CudaStream) -> Result<()>;
    /// Makes all work that is queued on the stream after this call run after the event.
    ///
    /// # Errors
    /// The driver's error.
    fn wait(&self, stream: CudaStream, event: CudaEvent) -> Result<()>;
    /// Blocks the caller until a stream has no work left.
    ///
    /// # Errors
    /// The error of work in the stream.
    fn finish(&self, stream: CudaStream) -> Result<()>;
    /// Whether a stream has no work left.
    ///
    /// # Errors
    /// The error of work in the stream.
    fn idle(&self, stream: CudaStream) -> Result<bool>;
    /// Blocks the caller until an event has happened.
    ///
    /// # Errors
    /// The error of work before the event.
    fn synchronize(&self, event: CudaEvent) -> Result<()>;
    /// Waits for the event `to` and returns the nanoseconds from `from` to it; 0 on a machine without a clock.
    ///
    /// # Errors
    /// The driver's error.
    fn between(&self, from: CudaEvent, to: CudaEvent) -> Result<u64>;
    /// Starts a capture: from now on the stream, and streams that wait for its events, record their work instead of running it.
    ///
    /// # Errors
    /// The driver's error.
    fn begin_capture(&self, stream: CudaStream) -> Result<()>;
    /// Whether work of a stream is recorded in a capture.
    ///
    /// # Errors
    /// The driver's error.
    fn captures(&self, stream: CudaStream) -> Result<bool>;
    /// Ends the capture that [`CudaMachine::begin_capture`] began and returns its graph.
    ///
    /// # Errors
    /// The driver's error, such as for a captured stream that was not joined to this one again.
    fn end_capture(&self, stream: CudaStream) -> Result<CudaGraph>;
    /// Replays a captured graph with a single launch.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// All memory that the captured work names is still acquired.
    unsafe fn replay(&self, stream: CudaStream, graph: CudaGraph) -> Result<()>;
    /// Destroys a captured graph.
    fn forget(&self, graph: CudaGraph);
}
