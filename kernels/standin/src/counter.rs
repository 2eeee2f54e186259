//! A machine without memory or arithmetic: it counts the bytes that launches, copies and library calls name, so that a step of a large
//! network is counted in seconds.
//!
//! Every operand of a launch counts once, as if caches were perfect, and twice if the kernel reads and writes it. Device memory has
//! addresses only, and reads as zeros.

use allfold_base::lock;
use allfold_cuda::{CudaEvent, CudaGraph, CudaMachine, CudaStream, Error, Launch, MemoryAccess, Result};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The bytes that the launches of a kernel, or the calls of a library function, move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of launches.
    pub launches: u64,
    /// The bytes that are read.
    pub read: u64,
    /// The bytes that are written.
    pub written: u64,
}

/// A machine that counts what its devices would read and write, and computes nothing.
#[derive(Default)]
pub struct Counter {
    traffic: Mutex<BTreeMap<String, Traffic>>,
    /// The next free address.
    next: Mutex<u64>,
    /// Page-locked memory, which the host does write.
    pinned: Mutex<BTreeMap<u64, Vec<u64>>>,
}

impl Counter {
    /// A counter of one device.
    pub fn open() -> Arc<dyn CudaMachine> {
        Arc::new(Counter { next: Mutex::new(1 << 40), ..Counter::default() })
    }

    /// A machine as a counter; `None` for other machines.
    pub fn of(machine: &dyn CudaMachine) -> Option<&Counter> {
        (machine as &dyn Any).downcast_ref()
    }

    /// The traffic so far, by the name of the kernel, the library function, or `copy`, `upload`, `download` and `fill`.
    pub fn traffic(&self) -> BTreeMap<String, Traffic> {
        lock(&self.traffic).clone()
    }

    /// Forgets the traffic so far.
    pub fn clear(&self) {
        lock(&self.traffic).clear();
    }

    fn count(&self, name: &str, accesses: &[MemoryAccess]) {
        let mut all = lock(&self.traffic);
        let of = all.entry(name.into()).or_default();
        of.launches += 1;
        for access in accesses {
            *(if access.write { &mut of.written } else { &mut of.read }) += access.bytes;
        }
    }

    fn moved(&self, name: &str, read: usize, written: usize) -> Result<()> {
        let access = |bytes: usize, write| MemoryAccess { address: 0, bytes: bytes as u64, write };
        self.count(name, &[access(read, false), access(written, true)]);
        Ok(())
    }

    fn number(&self) -> u32 {
        let mut next = lock(&self.next);
        *next += 256;
        (*next >> 8) as u32
    }
}

impl CudaMachine for Counter {
    fn name(&self) -> String {
        "a counter of bytes".into()
    }

    fn devices(&self) -> usize {
        1
    }

    /// The number of an H100, by which partial sums have a GPU's sizes.
    fn multiprocessors(&self, _device: usize) -> u32 {
        132
    }

    fn counted_call(&self, call: &'static str, accesses: &[MemoryAccess]) -> bool {
        self.count(call, accesses);
        true
    }

    fn stream(&self, _device: usize) -> Result<CudaStream> {
        Ok(CudaStream(self.number()))
    }

    fn native(&self, _stream: CudaStream) -> Result<u64> {
        Err(Error::Argument("a counter has no streams of CUDA's".into()))
    }

    fn acquire(&self, _device: usize, bytes: usize) -> Result<u64> {
        let mut next = lock(&self.next);
        let address = *next;
        *next += (bytes as u64).next_multiple_of(256).max(256);
        Ok(address)
    }

    unsafe fn release(&self, _device: usize, _address: u64) {}

    fn pin(&self, _device: usize, bytes: usize) -> Result<u64> {
        let memory = vec![0u64; bytes.div_ceil(8)];
        let address = memory.as_ptr() as u64;
        lock(&self.pinned).insert(address, memory);
        Ok(address)
    }

    unsafe fn unpin(&self, address: u64) {
        lock(&self.pinned).remove(&address);
    }

    unsafe fn copy_from_pinned(
        &self,
        _stream: CudaStream,
        _into: u64,
        _from: u64,
        bytes: usize,
    ) -> Result<()> {
        self.moved("upload", 0, bytes)
    }

    unsafe fn write(&self, _stream: CudaStream, _into: u64, from: &[u8]) -> Result<()> {
        self.moved("upload", 0, from.len())
    }

    unsafe fn read(&self, _stream: CudaStream, into: &mut [u8], _from: u64) -> Result<()> {
        into.fill(0);
        self.moved("download", into.len(), 0)
    }

    unsafe fn copy(&self, _stream: CudaStream, _into: u64, _from: u64, bytes: usize) -> Result<()> {
        self.moved("copy", bytes, bytes)
    }

    unsafe fn fill(&self, _stream: CudaStream, _into: u64, bytes: usize, _value: u8) -> Result<()> {
        self.moved("fill", 0, bytes)
    }

    unsafe fn launch(&self, _stream: CudaStream, launch: &Launch) -> Result<()> {
        self.count(&launch.kernel.name, launch.arguments.accesses());
        Ok(())
    }

    fn record(&self, _stream: CudaStream) -> Result<CudaEvent> {
        Ok(CudaEvent(self.number()))
    }

    fn record_again(&self, _event: CudaEvent, _stream: CudaStream) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _stream: CudaStream, _event: CudaEvent) -> Result<()> {
        Ok(())
    }

    fn finish(&self, _stream: CudaStream) -> Result<()> {
        Ok(())
    }

    fn idle(&self, _stream: CudaStream) -> Result<bool> {
        Ok(true)
    }

    fn synchronize(&self, _event: CudaEvent) -> Result<()> {
        Ok(())
    }

    fn between(&self, _from: CudaEvent, _to: CudaEvent) -> Result<u64> {
        Ok(0)
    }

    fn begin_capture(&self, _stream: CudaStream) -> Result<()> {
        Ok(())
    }

    fn captures(&self, _stream: CudaStream) -> Result<bool> {
        Ok(false)
    }

    /// The work of the capture has been counted; a replay counts nothing.
    fn end_capture(&self, _stream: CudaStream) -> Result<CudaGraph> {
        Ok(CudaGraph(self.number()))
    }

    unsafe fn replay(&self, _stream: CudaStream, _graph: CudaGraph) -> Result<()> {
        Ok(())
    }

    fn forget(&self, _graph: CudaGraph) {}
}
