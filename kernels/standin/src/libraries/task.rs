//! The tasks of streams.

use super::shared_file::SharedFile;
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
    /// For an event of several processes: what they know of it, and the number of the recording.
    shared: Option<(Arc<SharedFile>, u64)>,
}

impl Ticket {
    pub fn of(shared: Option<(Arc<SharedFile>, u64)>) -> Arc<Ticket> {
        Arc::new(Ticket { shared, ..Ticket::default() })
    }

    /// Whether another process may reach it, which wakes no thread of this one.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    pub fn is_done(&self) -> bool {
        let elsewhere = |(file, nth): &(Arc<SharedFile>, u64)| file.has_happened(*nth);
        self.done.load(Ordering::Acquire) || self.shared.as_ref().is_some_and(elsewhere)
    }

    pub fn time(&self) -> Option<Instant> {
        self.time.get().copied()
    }

    pub fn punch(&self) {
        let _ = self.time.set(Instant::now());
        self.done.store(true, Ordering::Release);
        if let Some((file, nth)) = &self.shared {
            file.happens(*nth);
        }
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
