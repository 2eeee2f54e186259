//! The tasks of streams.

use crate::shim::Poll;
use allfold_base::lock;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// One recording of an event: whether and when the stream has reached it.
#[derive(Default)]
pub(super) struct Ticket {
    done: AtomicBool,
    time: OnceLock<Instant>,
}

impl Ticket {
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    pub fn time(&self) -> Option<Instant> {
        self.time.get().copied()
    }

    pub fn punch(&self) {
        let _ = self.time.set(Instant::now());
        self.done.store(true, Ordering::Release);
    }
}

/// A barrier at which several streams wait for each other, like the kernels of a collective: each spins until all have arrived.
pub struct Gate {
    members: usize,
    came: Mutex<BTreeSet<u64>>,
}

impl Gate {
    /// A gate for `members` streams.
    pub fn new(members: usize) -> Arc<Gate> {
        Arc::new(Gate { members, came: Mutex::default() })
    }

    /// Registers the arrival of a stream. Returns whether the stream may pass, and whether it is the last member to arrive.
    pub fn arrive(&self, stream: u64) -> (bool, bool) {
        let mut came = lock(&self.came);
        let new = came.insert(stream);
        (came.len() >= self.members, new && came.len() == self.members)
    }
}

/// A kernel launch, with its arguments as copied at the launch.
pub(super) struct Kernel {
    pub name: CString,
    pub grid: [u32; 3],
    pub threads: u32,
    pub arguments: Vec<Vec<u64>>,
}

/// A task of a stream.
#[derive(Clone)]
pub(super) enum Task {
    Copy {
        into: u64,
        from: u64,
        bytes: u64,
    },
    Fill {
        into: u64,
        bytes: u64,
        value: u8,
    },
    Kernel(Arc<Kernel>),
    Record(Arc<Ticket>),
    Wait(Arc<Ticket>),
    Spin(Arc<Gate>),
    /// The task of another library, with the memory ranges that it accesses.
    Foreign(Arc<[(u64, u64)]>, Arc<dyn Fn() + Send + Sync>),
    /// The task of another library that waits for other processes: its memory ranges, and what begins it.
    Waiting(Arc<[(u64, u64)]>, Arc<dyn Fn() -> Poll + Send + Sync>),
}
