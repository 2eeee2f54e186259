//! Common parts of the stand-ins for cuBLASLt and cuDNN: descriptions by handle, matrices of any type as f32, and work on streams.

use super::task::Task;
use super::world::here;
use allfold_base::lock;
use cudarc::driver::sys::CUresult;
use half::{bf16, f16};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// An element type of both libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    F32,
    F16,
    Bf16,
}

impl Kind {
    pub fn size(self) -> u64 {
        if self == Kind::F32 { 4 } else { 2 }
    }

    /// Reads `count` elements of device memory, widened to f32.
    pub fn read(self, at: u64, count: usize) -> Vec<f32> {
        // SAFETY: the stream's task names the range, which is allocated while the task runs.
        unsafe {
            match self {
                Kind::F32 => std::slice::from_raw_parts(at as *const f32, count).to_vec(),
                Kind::F16 => {
                    std::slice::from_raw_parts(at as *const f16, count).iter().map(|x| x.to_f32()).collect()
                }
                Kind::Bf16 => {
                    std::slice::from_raw_parts(at as *const bf16, count).iter().map(|x| x.to_f32()).collect()
                }
            }
        }
    }

    /// Writes elements to device memory, each rounded once.
    pub fn write(self, at: u64, values: &[f32]) {
        for (nth, value) in values.iter().enumerate() {
            // SAFETY: the stream's task names the range, which is allocated while the task runs.
            unsafe {
                match self {
                    Kind::F32 => (at as *mut f32).add(nth).write(*value),
                    Kind::F16 => (at as *mut f16).add(nth).write(f16::from_f32(*value)),
                    Kind::Bf16 => (at as *mut bf16).add(nth).write(bf16::from_f32(*value)),
                }
            }
        }
    }
}

/// Descriptions by handle. Tests count those that are never destroyed.
pub(super) struct Table<T>(pub Mutex<(u64, BTreeMap<u64, T>)>);

impl<T: Clone> Table<T> {
    pub const fn new() -> Table<T> {
        Table(Mutex::new((0, BTreeMap::new())))
    }

    pub fn make(&self, thing: T) -> u64 {
        let (next, all) = &mut *lock(&self.0);
        *next += 1;
        all.insert(*next << 4, thing);
        *next << 4
    }

    pub fn get(&self, handle: u64) -> Option<T> {
        lock(&self.0).1.get(&handle).cloned()
    }

    pub fn change(&self, handle: u64, change: impl FnOnce(&mut T)) -> bool {
        lock(&self.0).1.get_mut(&handle).map(change).is_some()
    }

    pub fn end(&self, handle: u64) -> bool {
        lock(&self.0).1.remove(&handle).is_some()
    }

    pub fn len(&self) -> usize {
        lock(&self.0).1.len()
    }
}

/// Queues work over ranges of device memory on a stream of the calling thread's context.
pub(super) fn give(
    stream: u64,
    call: &'static str,
    ranges: Vec<(u64, u64)>,
    work: impl Fn() + Send + Sync + 'static,
) -> Result<(), CUresult> {
    let mut here = here();
    here.own(stream, call)?;
    if let Some((at, bytes)) =
        ranges.iter().find(|(at, bytes)| *bytes > 0 && here.holds(*at, *bytes).is_none())
    {
        here.violates(format!("{call}: {bytes} bytes at {at:#x} are not allocated"));
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    here.give(stream, call, Task::Foreign(ranges.into(), Arc::new(work)))
}
