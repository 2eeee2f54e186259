//! A pool of device memory for one queue: freeing, and allocating freed memory again, cost a look-up and no call of the driver.
//!
//! Freeing through the driver waits for the whole device, so memory that a step needs briefly is taken from the pool instead. A queue
//! runs in order, so freed memory may be reused immediately, even before its last use has run. A captured step contains addresses of the
//! pool; so no memory is returned to the driver before the pool is dropped.

use super::{CudaMachine, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pool allocations are multiples of this many bytes.
const GRAIN: usize = 512;

/// How much memory a pool has taken, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes taken from the driver.
    pub reserved: u64,
    /// Bytes in use at present.
    pub used: u64,
    /// The most bytes in use at once.
    pub peak: u64,
}

#[derive(Default)]
struct State {
    /// Addresses of free memory, by size in bytes.
    free: BTreeMap<usize, Vec<u64>>,
    usage: PoolUsage,
}

/// The pool of one queue.
pub(super) struct Pool {
    machine: Arc<dyn CudaMachine>,
    device: usize,
    state: Mutex<State>,
}

impl Pool {
    pub fn new(machine: Arc<dyn CudaMachine>, device: usize) -> Pool {
        Pool { machine, device, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes memory of at least `bytes` bytes: its address and its size.
    pub fn take(&self, bytes: usize) -> Result<(u64, usize)> {
        let wanted = bytes.max(1).next_multiple_of(GRAIN);
        let mut state = self.state();
        // Take the smallest free memory that fits, unless more than half of it would be unused.
        let fits = state.free.range(wanted..=wanted.saturating_mul(2)).next().map(|(size, _)| *size);
        let found = fits.and_then(|size| {
            let of_size = state.free.get_mut(&size)?;
            let address = of_size.pop()?;
            if of_size.is_empty() {
                state.free.remove(&size);
            }
            Some((address, size))
        });
        let (address, size) = match found {
            Some(found) => found,
            None => {
                let address = self.machine.acquire(self.device, wanted)?;
                state.usage.reserved += wanted as u64;
                (address, wanted)
            }
        };
        state.usage.used += size as u64;
        state.usage.peak = state.usage.peak.max(state.usage.used);
        Ok((address, size))
    }

    pub fn give(&self, address: u64, size: usize) {
        let mut state = self.state();
        state.usage.used -= size as u64;
        state.free.entry(size).or_default().push(address);
    }

    pub fn usage(&self) -> PoolUsage {
        self.state().usage
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let free = std::mem::take(&mut self.state().free);
        for address in free.into_values().flatten() {
            // SAFETY: the address was acquired in `take`, and its user has returned it.
            unsafe { self.machine.release(self.device, address) };
        }
    }
}
