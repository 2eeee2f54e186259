//! Device memory, parts of it, and the queue that works on them: the safe interface of a [`CudaMachine`].

mod ipc;

use super::pool::{Pool, PoolUsage};
use super::{CudaEvent, CudaMachine, CudaStream, Error, Launch, Result};
use bytemuck::Pod;
use std::fmt;
use std::sync::Arc;

/// Device memory. When dropped, it is freed after all queued work has run, or returned to its queue's pool, or stays with its owner.
pub struct Memory {
    machine: Arc<dyn CudaMachine>,
    device: usize,
    address: u64,
    bytes: usize,
    home: Home,
}

/// The destination of dropped memory.
enum Home {
    /// The memory is returned to the driver.
    Driver,
    /// The memory is returned to a queue's pool, with the given number of bytes.
    Pool(Arc<Pool>, usize),
    /// The memory belongs to another owner and is not freed.
    Lent,
    /// The memory belongs to another process.
    Opened,
}

impl Memory {
    /// Allocates `bytes` bytes on a device, aligned to 256 bytes, with undefined content.
    ///
    /// # Errors
    /// The driver's error, for example for lack of memory.
    pub fn new(machine: &Arc<dyn CudaMachine>, device: usize, bytes: usize) -> Result<Memory> {
        let address = machine.acquire(device, bytes)?;
        Ok(Memory { machine: machine.clone(), device, address, bytes, home: Home::Driver })
    }

    /// A view of memory that another owner holds; dropping the view frees nothing.
    ///
    /// # Safety
    /// `bytes` bytes at `address` are acquired from `machine` on `device`, and stay so until all work that is queued on them
    /// through this view has run.
    pub unsafe fn lent(machine: &Arc<dyn CudaMachine>, device: usize, address: u64, bytes: usize) -> Memory {
        Memory { machine: machine.clone(), device, address, bytes, home: Home::Lent }
    }

    /// The whole memory as a slice.
    pub fn all(&self) -> Slice<'_> {
        Slice { memory: self, at: 0, bytes: self.bytes }
    }

    /// The size of the memory in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the size is 0.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address of the memory, for libraries that take addresses.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The device of the memory.
    pub fn device(&self) -> usize {
        self.device
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match &self.home {
            Home::Lent => {}
            // SAFETY: the memory was opened in `opened` and is closed once; its user waits for the work on it first.
            Home::Opened => unsafe { self.machine.close_memory(self.device, self.address) },
            Home::Pool(pool, size) => pool.give(self.address, *size),
            // SAFETY: the memory was acquired in `new` and is released once. The release waits for work in flight (cuMemFree does).
            Home::Driver => unsafe { self.machine.release(self.device, self.address) },
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes on device {}", self.bytes, self.device)
    }
}

/// A part of a memory, within its bounds. A shared slice may be written through: device memory is never seen as a Rust reference,
/// and queued work runs in order.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    memory: &'a Memory,
    at: usize,
    bytes: usize,
}

impl<'a> Slice<'a> {
    /// The `bytes` bytes from offset `at` of this slice.
    ///
    /// # Errors
    /// [`Error::Argument`] if the range passes the slice's end.
    pub fn part(&self, at: usize, bytes: usize) -> Result<Slice<'a>> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(Slice { memory: self.memory, at: self.at + at, bytes }),
            _ => Err(Error::Argument(format!(
                "bytes {at} to {at} + {bytes} lie outside the memory, which has {} bytes",
                self.bytes
            ))),
        }
    }

    /// The address of the slice's first byte.
    pub fn address(&self) -> u64 {
        self.memory.address + self.at as u64
    }

    /// The size of the slice in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the slice has 0 bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The number of elements of `size` bytes each.
    ///
    /// # Errors
    /// [`Error::Argument`] if the length or the address is no multiple of `size`.
    pub fn elements(&self, size: usize) -> Result<u64> {
        if !self.bytes.is_multiple_of(size) || !self.address().is_multiple_of(size as u64) {
            let (bytes, at) = (self.bytes, self.at);
            return Err(Error::Argument(format!(
                "{bytes} bytes at {at} are not whole elements of {size} bytes"
            )));
        }
        Ok((self.bytes / size) as u64)
    }

    /// The device that holds the slice.
    pub fn device(&self) -> usize {
        self.memory.device
    }
}

/// A stream that is destroyed when the last queue on it is dropped.
struct OwnStream {
    machine: Arc<dyn CudaMachine>,
    stream: CudaStream,
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        self.machine.retire_stream(self.stream);
    }
}

struct OwnEvent {
    machine: Arc<dyn CudaMachine>,
    event: CudaEvent,
}

impl Drop for OwnEvent {
    fn drop(&mut self) {
        self.machine.retire_event(self.event);
    }
}

/// A point in a queue. Its event is destroyed when the last copy of the mark is dropped.
#[derive(Clone)]
pub struct Mark(Arc<OwnEvent>);

impl Mark {
    /// The mark's event, valid while the mark lives.
    pub fn event(&self) -> CudaEvent {
        self.0.event
    }

    /// Moves the mark behind all work that was queued on `queue`. No other queue may still wait for the mark.
    ///
    /// # Errors
    /// The driver's error.
    pub fn move_to(&self, queue: &Queue) -> Result<()> {
        self.0.machine.record_again(self.0.event, queue.stream())
    }

    /// Waits for the mark `to` and returns the nanoseconds from this mark to it; 0 on a machine without a clock.
    ///
    /// # Errors
    /// The driver's error.
    pub fn until(&self, to: &Mark) -> Result<u64> {
        self.0.machine.between(self.0.event, to.0.event)
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.event.fmt(f)
    }
}

/// A queue of work on one stream: the work runs in order. The stream is destroyed with the last clone of the queue.
#[derive(Clone)]
pub struct Queue {
    machine: Arc<dyn CudaMachine>,
    device: usize,
    stream: Arc<OwnStream>,
    pool: Option<Arc<Pool>>,
}

impl Queue {
    /// A queue on a new stream of a device.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(machine: Arc<dyn CudaMachine>, device: usize) -> Result<Queue> {
        if device >= machine.devices() {
            return Err(Error::Argument(format!(
                "device {device} does not exist; there are {} devices",
                machine.devices()
            )));
        }
        let stream = machine.stream(device)?;
        Ok(Queue::on(machine, device, stream))
    }

    /// A queue on a new stream of a device, whose kernels are scheduled before those of other queues.
    ///
    /// # Errors
    /// The driver's error.
    pub fn urgent(machine: Arc<dyn CudaMachine>, device: usize) -> Result<Queue> {
        let stream = machine.urgent_stream(device)?;
        Ok(Queue::on(machine, device, stream))
    }

    fn on(machine: Arc<dyn CudaMachine>, device: usize, stream: CudaStream) -> Queue {
        let stream = Arc::new(OwnStream { machine: machine.clone(), stream });
        Queue { machine, device, stream, pool: None }
    }

    /// This queue with a pool: memory that the queue frees is reused by its next allocations, and is returned to the driver when every
    /// clone of the queue and all of its memory is dropped. Only this queue may use such memory; memory for several queues comes from
    /// [`Memory::new`].
    pub fn pooled(mut self) -> Queue {
        self.pool = Some(Arc::new(Pool::new(self.machine.clone(), self.device)));
        self
    }

    /// How much memory a pooled queue has taken from the driver; zeros for a queue without a pool.
    pub fn usage(&self) -> PoolUsage {
        self.pool.as_ref().map_or_else(PoolUsage::default, |pool| pool.usage())
    }

    /// The machine of the queue.
    pub fn machine(&self) -> &Arc<dyn CudaMachine> {
        &self.machine
    }

    /// The device of the queue.
    pub fn device(&self) -> usize {
        self.device
    }

    /// The stream of the queue.
    pub fn stream(&self) -> CudaStream {
        self.stream.stream
    }

    /// Allocates memory on the queue's device.
    ///
    /// # Errors
    /// The errors of [`Memory::new`].
    pub fn memory(&self, bytes: usize) -> Result<Memory> {
        let Some(pool) = &self.pool else { return Memory::new(&self.machine, self.device, bytes) };
        let (address, size) = pool.take(bytes)?;
        let (machine, home) = (self.machine.clone(), Home::Pool(pool.clone(), size));
        Ok(Memory { machine, device: self.device, address, bytes, home })
    }

    /// Allocates device memory and copies `values` into it.
    ///
    /// # Errors
    /// The errors of [`Memory::new`].
    pub fn upload<T: Pod>(&self, values: &[T]) -> Result<Memory> {
        let memory = self.memory(size_of_val(values))?;
        self.write(memory.all(), values)?;
        Ok(memory)
    }

    /// Copies host values to the device.
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths differ; the driver's error.
    pub fn write<T: Pod>(&self, into: Slice<'_>, from: &[T]) -> Result<()> {
        same(into.bytes, size_of_val(from))?;
        // SAFETY: a `Slice` is within acquired memory.
        unsafe { self.machine.write(self.stream(), into.address(), bytemuck::cast_slice(from)) }
    }

    /// Copies device values to the host, after all queued work has run.
    ///
    /// # Errors
    /// The errors of [`Queue::write`], and the errors of earlier work.
    pub fn download<T: Pod>(&self, from: Slice<'_>) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); from.bytes / size_of::<T>()];
        self.read(&mut values, from)?;
        Ok(values)
    }

    /// Copies device memory into a host buffer and waits for the copy.
    ///
    /// # Errors
    /// The errors of [`Queue::download`].
    pub fn read<T: Pod>(&self, into: &mut [T], from: Slice<'_>) -> Result<()> {
        same(size_of_val(into), from.bytes)?;
        // SAFETY: a `Slice` is within acquired memory.
        unsafe { self.machine.read(self.stream(), bytemuck::cast_slice_mut(into), from.address()) }
    }

    /// Copies memory within a device or from one device to another.
    ///
    /// # Errors
    /// [`Error::Argument`] if the lengths differ, or the parts overlap and are not the same.
    pub fn copy(&self, into: Slice<'_>, from: Slice<'_>) -> Result<()> {
        same(into.bytes, from.bytes)?;
        let (a, b, bytes) = (into.address(), from.address(), from.bytes as u64);
        if bytes == 0 || a == b {
            return Ok(());
        }
        if a < b + bytes && b < a + bytes {
            return Err(Error::Argument("the source and the destination of a copy overlap".into()));
        }
        // SAFETY: a `Slice` is within acquired memory, and the two do not overlap.
        unsafe { self.machine.copy(self.stream(), a, b, from.bytes) }
    }

    /// Sets every byte of a slice to `value`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn fill(&self, into: Slice<'_>, value: u8) -> Result<()> {
        if into.is_empty() {
            return Ok(());
        }
        // SAFETY: a `Slice` is within acquired memory.
        unsafe { self.machine.fill(self.stream(), into.address(), into.bytes, value) }
    }

    /// A mark behind all work that has been queued.
    ///
    /// # Errors
    /// The driver's error.
    pub fn record(&self) -> Result<Mark> {
        let event = self.machine.record(self.stream())?;
        Ok(Mark(Arc::new(OwnEvent { machine: self.machine.clone(), event })))
    }

    /// A mark behind all work that has been queued, for [`Queue::wait`] alone: it has no time.
    ///
    /// # Errors
    /// The driver's error.
    pub fn mark(&self) -> Result<Mark> {
        let event = self.machine.mark(self.stream())?;
        Ok(Mark(Arc::new(OwnEvent { machine: self.machine.clone(), event })))
    }

    /// Makes all work that is queued after this call run after `mark`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn wait(&self, mark: &Mark) -> Result<()> {
        self.wait_for(mark.event())
    }

    /// Like [`Queue::wait`], for an event; the owner of the event's mark must not drop the mark until this queue has passed it.
    ///
    /// # Errors
    /// The driver's error.
    pub fn wait_for(&self, event: CudaEvent) -> Result<()> {
        self.machine.wait(self.stream(), event)
    }

    /// Blocks the caller until all queued work has run.
    ///
    /// # Errors
    /// The error of queued work.
    pub fn finish(&self) -> Result<()> {
        self.machine.finish(self.stream())
    }

    /// Runs a kernel. Only for the functions of `launch`, which pass the arguments of each kernel.
    ///
    /// # Safety
    /// The conditions of [`CudaMachine::launch`].
    pub(super) unsafe fn launch(&self, launch: &Launch) -> Result<()> {
        // SAFETY: the caller meets the conditions of [`CudaMachine::launch`].
        unsafe { self.machine.launch(self.stream(), launch) }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of device {} of {}", self.stream().0, self.device, self.machine.name())
    }
}

fn same(into: usize, from: usize) -> Result<()> {
    match into == from {
        true => Ok(()),
        false => Err(Error::Argument(format!(
            "{from} bytes cannot be copied into memory of {into} bytes; both must be equally long"
        ))),
    }
}
