//! What a rank's communicators that share resources have in common in the NCCL stand-in: the abort flag, and the order of their kernels.

use allfold_base::lock;
use allfold_cuda::CudaMachine;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The communicators of a rank that share resources (`splitShare`), or a single one.
#[derive(Default)]
pub(super) struct Family {
    aborted: AtomicBool,
    /// The number of the next kernel, and the kernels that were issued and have not ended.
    kernels: Mutex<(u64, BTreeSet<u64>)>,
}

impl Family {
    /// Sets the abort flag, which ends kernels and waiting calls, or clears it.
    pub fn abort(&self, on: bool) {
        self.aborted.store(on, Ordering::Release);
    }

    pub fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// The number of a kernel that is issued now.
    pub fn issue(&self) -> u64 {
        let (next, issued) = &mut *lock(&self.kernels);
        *next += 1;
        issued.insert(*next);
        *next
    }

    /// Whether all kernels that were issued before this one have ended.
    pub fn is_next(&self, kernel: u64) -> bool {
        lock(&self.kernels).1.first().is_none_or(|first| *first >= kernel)
    }

    pub fn end(&self, kernel: u64) {
        lock(&self.kernels).1.remove(&kernel);
    }
}

/// The communicators that the ranks on one machine have made, each counted once on every rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NcclCommunicators {
    /// Those that were joined by a unique id.
    pub joined: usize,
    /// Those that were split off, with resources of their own.
    pub separate: usize,
    /// Those that were split off and share their parent's resources.
    pub shared: usize,
}

static MADE: Mutex<Vec<(Weak<dyn CudaMachine>, NcclCommunicators)>> = Mutex::new(Vec::new());

/// Counts a communicator on a machine, and returns the counts.
pub(super) fn count(
    machine: &Arc<dyn CudaMachine>,
    add: impl FnOnce(&mut NcclCommunicators),
) -> NcclCommunicators {
    let mut all = lock(&MADE);
    all.retain(|(of, _)| of.strong_count() > 0);
    let at = all.iter().position(|(of, _)| std::ptr::addr_eq(of.as_ptr(), Arc::as_ptr(machine)));
    let at = at.unwrap_or_else(|| {
        all.push((Arc::downgrade(machine), NcclCommunicators::default()));
        all.len() - 1
    });
    add(&mut all[at].1);
    all[at].1
}

/// The communicators that ranks on a shim have made.
pub fn communicators(machine: &Arc<dyn CudaMachine>) -> NcclCommunicators {
    count(machine, |_| {})
}
