//! What runs kernels: a GPU, or the shim. The interface underneath [`super::Queue`], in raw addresses.

use super::{Kernel, Result};
use bytemuck::Pod;
use std::any::Any;

/// Threads of every block: the kernels are written for this many.
pub const THREADS: u32 = 256;

/// A queue of work on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaStream(pub u32);

/// A point in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaEvent(pub u32);

/// Work that was captured, to be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaGraph(pub u32);

/// A kernel with its arguments.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub kernel: Kernel,
    /// Blocks, along x, y, z.
    pub grid: [u32; 3],
    /// The kernel's arguments.
    pub arguments: Arguments,
}

/// Bytes of a device that a task reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAccess {
    /// The address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// Written, and perhaps read too.
    pub write: bool,
}

/// The arguments of a kernel, in order, by value, and the memory that it reads and writes.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    /// Words, so that every argument is aligned.
    words: Vec<u64>,
    starts: Vec<usize>,
    accesses: Vec<MemoryAccess>,
}

impl Arguments {
    /// No arguments yet.
    pub fn new() -> Arguments {
        Arguments::default()
    }

    /// One more. The type must be the kernel's own: an address is a u64.
    pub fn with<T: Pod>(mut self, value: T) -> Arguments {
        let bytes = bytemuck::bytes_of(&value);
        let start = self.words.len();
        self.starts.push(start);
        self.words.resize(start + bytes.len().div_ceil(8), 0);
        bytemuck::cast_slice_mut(&mut self.words[start..])[..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Notes ranges that the kernel reads or writes. Passes nothing.
    pub(super) fn notes(mut self, accesses: impl IntoIterator<Item = MemoryAccess>) -> Arguments {
        self.accesses.extend(accesses);
        self
    }

    /// What the kernel reads and writes, as far as it was said.
    pub fn accesses(&self) -> &[MemoryAccess] {
        &self.accesses
    }

    /// A pointer to each argument; they live as long as `self` is not moved or changed.
    pub fn pointers(&mut self) -> Vec<*mut std::ffi::c_void> {
        let Arguments { words, starts, .. } = self;
        starts.iter().map(|start| words[*start..].as_mut_ptr().cast()).collect()
    }
}

/// Where memory is and kernels run. Work of one stream runs in order; work of several, at once, unless an event orders it.
///
/// Everything but the queries is `unsafe`, since addresses are numbers; [`super::Queue`] is the safe face.
pub trait CudaMachine: Any + Send + Sync {
    /// The name of this machine in messages.
    fn name(&self) -> String;
    /// Devices.
    fn devices(&self) -> usize;
    /// Multiprocessors of a device: what a grid is sized by.
    fn multiprocessors(&self, device: usize) -> u32;
    /// Whether kernels of device `from` can use memory of device `to`.
    fn reaches(&self, from: usize, to: usize) -> bool {
        let _ = (from, to);
        true
    }
    /// What tells a device from every other of the host, in every process: its UUID.
    fn identity(&self, device: usize) -> [u8; 16] {
        (device as u128).to_le_bytes()
    }
    /// Whether a test has put a defect that was mended back in, by its number in `docs/GPU.md`. Never
    /// without the feature `testing`.
    fn seeded(&self, defect: u8) -> bool {
        let _ = defect;
        false
    }
    /// A new stream on a device.
    ///
    /// # Errors
    /// What the driver refused.
    fn stream(&self, device: usize) -> Result<CudaStream>;
    /// Destroys a stream that is no longer used. Work that it was given still runs.
    fn retire_stream(&self, stream: CudaStream) {
        let _ = stream;
    }
    /// Destroys an event for which no work will wait any more.
    fn retire_event(&self, event: CudaEvent) {
        let _ = event;
    }
    /// A stream's handle, for libraries that are given one; makes its device the calling thread's.
    ///
    /// # Errors
    /// That this machine has none.
    fn native(&self, stream: CudaStream) -> Result<u64>;
    /// Memory on a device, 256-byte aligned, of undefined content.
    ///
    /// # Errors
    /// What the driver refused; there may be too little.
    fn acquire(&self, device: usize, bytes: usize) -> Result<u64>;
    /// Gives memory back.
    ///
    /// # Safety
    /// The address is one of [`CudaMachine::acquire`], and nothing that is under way uses it.
    unsafe fn release(&self, device: usize, address: u64);
    /// Memory of the host that the device can read by itself: page-locked.
    ///
    /// # Errors
    /// What the driver refused.
    fn pin(&self, device: usize, bytes: usize) -> Result<u64>;
    /// Gives pinned memory back.
    ///
    /// # Safety
    /// The address is one of [`CudaMachine::pin`], and nothing that is under way reads it.
    unsafe fn unpin(&self, address: u64);
    /// Copies from pinned memory, and returns at once.
    ///
    /// # Errors
    /// What the driver refused.
    ///
    /// # Safety
    /// `from` is pinned memory that stays as it is until the stream has come this far; `into` is part of acquired memory.
    unsafe fn copy_from_pinned(&self, stream: CudaStream, into: u64, from: u64, bytes: usize) -> Result<()>;
    /// Copies from the host. Returns when `from` may be reused.
    ///
    /// # Errors
    /// What the driver refused.
    ///
    /// # Safety
    /// The bytes at `into` are part of acquired memory.
    unsafe fn write(&self, stream: CudaStream, into: u64, from: &[u8]) -> Result<()>;
    /// Copies to the host, and waits for it.
    ///
    /// # Errors
    /// What the driver refused, or what went wrong in the stream before.
    ///
    /// # Safety
    /// The bytes at `from` are part of acquired memory.
    unsafe fn read(&self, stream: CudaStream, into: &mut [u8], from: u64) -> Result<()>;
    /// Copies within a device or between two.
    ///
    /// # Errors
    /// What the driver refused.
    ///
    /// # Safety
    /// Both ranges are parts of acquired memory, and do not overlap.
    unsafe fn copy(&self, stream: CudaStream, into: u64, from: u64, bytes: usize) -> Result<()>;
    /// Sets every byte.
    ///
    /// # Errors
    /// What the driver refused.
    ///
    /// # Safety
    /// The range is part of acquired memory.
    unsafe fn fill(&self, stream: CudaStream, into: u64, bytes: usize, value: u8) -> Result<()>;
    /// Runs a kernel.
    ///
    /// # Errors
    /// What does not compile, or what the driver refused.
    ///
    /// # Safety
    /// The arguments are of the kernel's own types, and all that it reads and writes is acquired memory.
    unsafe fn launch(&self, stream: CudaStream, launch: &Launch) -> Result<()>;
    /// A point after all that the stream has been given.
    ///
    /// # Errors
    /// What the driver refused.
    fn record(&self, stream: CudaStream) -> Result<CudaEvent>;
    /// Records an event again, at a new point of a stream. No work may still wait for its earlier point.
    ///
    /// # Errors
    /// What the driver refused.
    fn record_again(&self, event: CudaEvent, stream: CudaStream) -> Result<()>;
    /// What the stream is given from here on runs after the event.
    ///
    /// # Errors
    /// What the driver refused.
    fn wait(&self, stream: CudaStream, event: CudaEvent) -> Result<()>;
    /// Waits until a stream has nothing left to do.
    ///
    /// # Errors
    /// What went wrong in the stream.
    fn finish(&self, stream: CudaStream) -> Result<()>;
    /// Whether a stream has nothing left to do.
    ///
    /// # Errors
    /// What went wrong in the stream.
    fn idle(&self, stream: CudaStream) -> Result<bool>;
    /// Waits, on the host, until an event has happened.
    ///
    /// # Errors
    /// What went wrong before it.
    fn synchronize(&self, event: CudaEvent) -> Result<()>;
    /// Nanoseconds between two events that have both happened; 0 on a machine without a clock.
    ///
    /// # Errors
    /// What the driver refused.
    fn between(&self, from: CudaEvent, to: CudaEvent) -> Result<u64>;
    /// From here on the stream, and those that wait for its events, note what they are given and do nothing.
    ///
    /// # Errors
    /// What the driver refused.
    fn begin_capture(&self, stream: CudaStream) -> Result<()>;
    /// The end of what [`CudaMachine::begin_capture`] began.
    ///
    /// # Errors
    /// What the driver refused, such as a stream that was not joined again.
    fn end_capture(&self, stream: CudaStream) -> Result<CudaGraph>;
    /// Replays a captured graph with a single launch.
    ///
    /// # Errors
    /// What the driver refused.
    ///
    /// # Safety
    /// All memory that was named in the capture is still acquired.
    unsafe fn replay(&self, stream: CudaStream, graph: CudaGraph) -> Result<()>;
    /// Drops a capture.
    fn forget(&self, graph: CudaGraph);
}
