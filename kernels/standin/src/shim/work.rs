//! The tasks that streams of the shim run.

use super::foreign::Foreign;
use super::library;
use super::memory::Blocks;
use super::options::FiberOrder;
use allfold_base::lock;
use allfold_cuda::THREADS;
use allfold_cuda::{Error, Launch, MemoryAccess, Result};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

/// The names of kernels that have run to their end.
pub(super) static LAUNCHED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The names of all kernels that have run on a shim of this process.
pub fn shim_launched() -> BTreeSet<String> {
    lock(&LAUNCHED).clone()
}

/// A task of a stream.
#[derive(Clone)]
pub(super) enum Work {
    Copy {
        into: u64,
        from: u64,
        bytes: usize,
    },
    /// A copy from the host, which may reuse its memory immediately.
    Upload {
        into: u64,
        bytes: Arc<[u8]>,
    },
    Fill {
        into: u64,
        bytes: usize,
        value: u8,
    },
    Launch(Arc<Launch>),
    Foreign(Foreign),
}

impl Work {
    pub fn name(&self) -> &str {
        match self {
            Work::Copy { .. } => "a copy",
            Work::Upload { .. } => "a copy from the host",
            Work::Fill { .. } => "a fill",
            Work::Launch(launch) => &launch.kernel.name,
            Work::Foreign(foreign) => foreign.name,
        }
    }

    pub fn accesses(&self) -> Vec<MemoryAccess> {
        let access = |address: u64, bytes: usize, write| MemoryAccess { address, bytes: bytes as u64, write };
        match self {
            Work::Copy { into, from, bytes } => {
                vec![access(*from, *bytes, false), access(*into, *bytes, true)]
            }
            Work::Upload { into, bytes } => vec![access(*into, bytes.len(), true)],
            Work::Fill { into, bytes, .. } => vec![access(*into, *bytes, true)],
            Work::Launch(launch) => launch.arguments.accesses().to_vec(),
            Work::Foreign(foreign) => foreign.accesses.clone(),
        }
    }
}

/// The options of the shim for running kernels.
pub(super) struct Runner {
    pub order: FiberOrder,
    /// Whether memory that a launch does not name is changed while the kernel runs.
    pub audit: bool,
}

impl Runner {
    /// Runs a task of the shim's own to its end.
    pub fn run(&self, work: &Work, blocks: &Blocks) -> Result<()> {
        match work {
            // SAFETY: the task was queued with acquired memory ranges that do not overlap.
            Work::Copy { into, from, bytes } => unsafe {
                std::ptr::copy_nonoverlapping(*from as *const u8, *into as *mut u8, *bytes);
            },
            // SAFETY: the task was queued with an acquired memory range of this length.
            Work::Upload { into, bytes } => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), *into as *mut u8, bytes.len());
            },
            // SAFETY: the task was queued with an acquired memory range of this length.
            Work::Fill { into, bytes, value } => unsafe {
                std::ptr::write_bytes(*into as *mut u8, *value, *bytes)
            },
            Work::Launch(launch) if self.audit => {
                let named = launch.arguments.accesses();
                let failed = |error| match error {
                    Error::Argument(what) => Error::Kernel { kernel: launch.kernel.name.clone(), what },
                    other => other,
                };
                blocks.audited(named, || self.kernel(launch, blocks)).map_err(failed)?;
            }
            Work::Launch(launch) => self.kernel(launch, blocks)?,
            Work::Foreign(_) => {}
        }
        Ok(())
    }

    fn kernel(&self, launch: &Launch, blocks: &Blocks) -> Result<()> {
        let failed = |what: String| Error::Kernel { kernel: launch.kernel.name.clone(), what };
        let name = CString::new(launch.kernel.name.as_str()).map_err(|_| failed("no such name".into()))?;
        let mut arguments = launch.arguments.clone();
        let mut pointers = arguments.pointers();
        // SAFETY: the launch was queued with arguments of the kernel's types.
        unsafe { library::run_kernel(&name, launch.grid, THREADS, &mut pointers, self.order) }
            .map_err(failed)?;
        lock(&LAUNCHED).insert(launch.kernel.name.clone());
        blocks.strips().map_err(failed)
    }
}
