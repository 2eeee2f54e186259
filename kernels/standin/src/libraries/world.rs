//! The state of the stand-in driver: contexts, streams, events, modules, graphs and memory, behind one lock.

use super::capture::{Capture, Clock};
use super::options::StandinOptions;
use super::range;
use super::shared_file::SharedFile;
use super::task::{Task, Ticket};
use allfold_base::lock;
use allfold_cuda::{Error, Result};
use cudarc::driver::sys::CUresult as Code;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A device's primary context.
pub(super) struct Context {
    pub device: usize,
    /// The number of retains that were not released yet.
    pub retained: u32,
    /// The error that all calls of the context return from now on.
    pub failed: Option<Code>,
    /// The other devices whose memory the kernels of this context may access.
    pub peers: BTreeSet<usize>,
}

pub(super) struct CudaStream {
    pub context: u64,
    pub queue: VecDeque<Task>,
    /// Whether a task of the stream is running.
    pub busy: bool,
    /// Whether the stream is destroyed; its queued tasks still run.
    pub dead: bool,
    pub wake: Arc<Condvar>,
    /// The capture that the stream belongs to.
    pub capture: Option<u64>,
}

/// The last recording of an event.
pub(super) enum Recorded {
    Never,
    At(Arc<Ticket>),
    /// Recorded in a capture: the capture, and the number of each stream's nodes that come before the event.
    Captured(u64, Clock),
}

pub(super) struct CudaEvent {
    pub context: u64,
    /// Whether the event has a time.
    pub timed: bool,
    pub last: Recorded,
    /// What other processes know of the event, if it is for them or theirs.
    pub shared: Option<Arc<SharedFile>>,
}

pub(super) struct Module {
    pub context: u64,
    /// The source file of the module's image.
    pub family: String,
}

pub(super) struct Function {
    pub module: u64,
    pub context: u64,
    pub name: std::ffi::CString,
}

pub(super) struct Allocation {
    /// The device of the allocation; the number of devices for pinned host memory.
    pub device: usize,
    pub bytes: u64,
    /// The file that holds the memory, if other processes may open it or have made it.
    pub shared: Option<Arc<SharedFile>>,
    /// Whether another process has made it.
    pub opened: bool,
}

/// The whole state of the stand-in driver.
#[derive(Default)]
pub(super) struct World {
    pub options: StandinOptions,
    pub started: bool,
    next: u64,
    pub contexts: BTreeMap<u64, Context>,
    pub streams: BTreeMap<u64, CudaStream>,
    pub events: BTreeMap<u64, CudaEvent>,
    pub modules: BTreeMap<u64, Module>,
    pub functions: BTreeMap<u64, Function>,
    pub captures: BTreeMap<u64, Capture>,
    /// Graphs, and executable graphs.
    pub graphs: BTreeMap<u64, Arc<Vec<Task>>>,
    pub executables: BTreeMap<u64, Arc<Vec<Task>>>,
    /// The allocations by address.
    pub memory: BTreeMap<u64, Allocation>,
    /// For each device, and then the host: the address of the next allocation, and the allocated bytes.
    pub parts: Vec<(u64, u64)>,
    pub violations: Vec<String>,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);
/// The condition on which threads of the host wait.
static HOST: Condvar = Condvar::new();

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// The locked state of the stand-in driver, empty before [`begin`].
pub(super) struct Here(MutexGuard<'static, Option<World>>);

impl std::ops::Deref for Here {
    type Target = World;
    fn deref(&self) -> &World {
        static EMPTY: std::sync::LazyLock<World> = std::sync::LazyLock::new(World::default);
        self.0.as_ref().unwrap_or(&EMPTY)
    }
}

impl std::ops::DerefMut for Here {
    fn deref_mut(&mut self) -> &mut World {
        self.0.get_or_insert_default()
    }
}

pub(super) fn here() -> Here {
    Here(lock(&WORLD))
}

impl Here {
    /// Releases the lock and waits on a stream's condition until it is notified, or so long.
    pub fn sleep(self, on: &Condvar, longest: Option<Duration>) -> Here {
        Here(match longest {
            None => on.wait(self.0).unwrap_or_else(PoisonError::into_inner),
            Some(time) => on.wait_timeout(self.0, time).unwrap_or_else(PoisonError::into_inner).0,
        })
    }

    /// Waits until `so` is true; a wait longer than the limit is a violation.
    pub fn until(
        mut self,
        call: &str,
        mut so: impl FnMut(&World) -> bool,
    ) -> std::result::Result<Here, Code> {
        let end = Instant::now() + self.options.limit;
        while !so(&self) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let limit = self.options.limit;
                self.violates(format!("{call} has waited for {limit:?}"));
                return Err(Code::CUDA_ERROR_LAUNCH_TIMEOUT);
            }
            self = Here(HOST.wait_timeout(self.0, left).unwrap_or_else(PoisonError::into_inner).0);
        }
        Ok(self)
    }
}

/// Sets up the driver's state; fails if that was done before.
pub(super) fn begin(options: StandinOptions) -> Result<()> {
    let mut here = here();
    if !here.parts.is_empty() {
        return Err(Error::Argument("this process has a stand-in driver already".into()));
    }
    range::reserve(options.devices)?;
    here.parts = (0..=options.devices).map(|device| (range::part(device), 0)).collect();
    here.options = options;
    Ok(())
}

/// Counts of the stand-in driver's live objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Retained contexts of all devices.
    pub contexts: usize,
    /// Streams that were not destroyed.
    pub streams: usize,
    /// Events that were not destroyed.
    pub events: usize,
    /// Modules that were not unloaded.
    pub modules: usize,
    /// Graphs and executable graphs that were not destroyed.
    pub graphs: usize,
    /// Allocations of device memory that were not freed.
    pub memory: usize,
    /// Allocations of pinned memory that were not freed.
    pub pinned: usize,
}

/// The numbers of objects that are alive in the stand-in.
pub fn standin_live() -> Live {
    let here = here();
    let pinned = here.memory.values().filter(|one| one.device == here.options.devices).count();
    Live {
        contexts: here.contexts.len(),
        streams: here.streams.values().filter(|stream| !stream.dead).count(),
        events: here.events.len(),
        modules: here.modules.len(),
        graphs: here.graphs.len() + here.executables.len(),
        memory: here.memory.len() - pinned,
        pinned,
    }
}

/// Since the last call: calls that a real driver leaves undefined, kernels that fail, waits longer than [`StandinOptions::limit`].
pub fn standin_violations() -> Vec<String> {
    std::mem::take(&mut here().violations)
}

impl World {
    /// Whether a stand-in is installed.
    pub fn is_begun(&self) -> bool {
        !self.parts.is_empty()
    }

    /// A new handle; no handle is returned twice.
    pub fn handle(&mut self) -> u64 {
        self.next += 1;
        self.next << 4
    }

    /// Records a violation.
    pub fn violates(&mut self, what: String) {
        self.violations.push(what);
    }

    /// The calling thread's context, or the error that all calls of the context now return.
    pub fn current(&self) -> std::result::Result<u64, Code> {
        let current = CURRENT.get();
        match self.contexts.get(&current) {
            None => Err(Code::CUDA_ERROR_INVALID_CONTEXT),
            Some(context) => context.failed.map_or(Ok(current), Err),
        }
    }

    /// The device of a context.
    pub fn device_of(&self, context: u64) -> usize {
        self.contexts.get(&context).map_or(0, |context| context.device)
    }

    /// Looks up a stream that was not destroyed; the thread must have a context.
    pub fn stream(&mut self, stream: u64, call: &str) -> std::result::Result<&mut CudaStream, Code> {
        self.current()?;
        if self.streams.get(&stream).is_none_or(|stream| stream.dead) {
            self.violates(format!("{call}: no stream {stream:#x}"));
            return Err(Code::CUDA_ERROR_INVALID_HANDLE);
        }
        self.streams.get_mut(&stream).ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Looks up a stream of the calling thread's own context.
    pub fn own(&mut self, stream: u64, call: &str) -> std::result::Result<&mut CudaStream, Code> {
        let current = self.current()?;
        let context = self.stream(stream, call)?.context;
        match context == current {
            true => self.stream(stream, call),
            false => Err(Code::CUDA_ERROR_INVALID_CONTEXT),
        }
    }

    /// Looks up an event that was not destroyed; the thread must have a context.
    pub fn event(&mut self, event: u64, call: &str) -> std::result::Result<&mut CudaEvent, Code> {
        self.current()?;
        if !self.events.contains_key(&event) {
            self.violates(format!("{call}: no event {event:#x}"));
        }
        self.events.get_mut(&event).ok_or(Code::CUDA_ERROR_INVALID_HANDLE)
    }

    /// The allocation that contains the whole range.
    pub fn holds(&self, address: u64, bytes: u64) -> Option<&Allocation> {
        let (start, one) = self.memory.range(..=address).next_back()?;
        (address + bytes <= start + one.bytes).then_some(one)
    }

    /// Whether an address is in the range of device memory and pinned memory.
    pub fn is_ours(&self, address: u64) -> bool {
        (range::part(0)..range::part(self.options.devices + 1)).contains(&address)
    }

    /// Whether all streams of a context have no work left.
    pub fn idle(&self, context: u64) -> bool {
        self.streams.values().all(|stream| stream.context != context || stream.is_idle())
    }

    /// Wakes streams and the host, which then check their conditions again.
    pub fn wake(&self) {
        self.streams.values().filter(|stream| !stream.queue.is_empty() || stream.dead).for_each(|stream| {
            stream.wake.notify_all();
        });
        HOST.notify_all();
    }

    /// Makes every later call of a context return this error.
    pub fn fail(&mut self, context: u64, code: Code) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.failed.get_or_insert(code);
        }
    }
}

impl CudaStream {
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.busy
    }
}

/// Makes a context current for the calling thread; 0 is none.
pub(super) fn enter(context: u64) {
    CURRENT.set(context);
}
