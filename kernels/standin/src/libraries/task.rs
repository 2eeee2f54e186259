//! What streams are given to do.

use crate::lock::lock;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// A point in a stream.
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

/// Several streams that wait for each other, as the kernels of a collective do: each turns in place until all have come.
pub struct Gate {
    members: usize,
    came: Mutex<BTreeSet<u64>>,
}

impl Gate {
    /// For so many streams.
    pub fn new(members: usize) -> Arc<Gate> {
        Arc::new(Gate { members, came: Mutex::default() })
    }

    /// Whether a stream that stands here may pass; whether it is the last that was missing.
    pub fn arrive(&self, stream: u64) -> (bool, bool) {
        let mut came = lock(&self.came);
        let new = came.insert(stream);
        (came.len() >= self.members, new && came.len() == self.members)
    }
}

/// A kernel with the arguments that were copied when it was launched.
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
    /// Another library's, with the ranges that it touches.
    Foreign(Arc<[(u64, u64)]>, Arc<dyn Fn() + Send + Sync>),
}
