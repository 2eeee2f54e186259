//! Device memory that is kept for its queue: taking and giving back cost a look-up, and no call of the driver.
//!
//! Giving memory back to the driver waits for the whole device, so what a step needs for a moment goes round here instead.
//! One queue runs in order, so memory that is given back while its last use is still to come may be handed out at once.
//! A captured step names such memory; hence nothing goes back to the driver before the pool itself.

use super::{CudaMachine, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sizes are multiples of this many bytes.
const GRAIN: usize = 512;

/// How much memory a queue has taken, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Taken from the driver.
    pub reserved: u64,
    /// Handed out at present.
    pub used: u64,
    /// The most that was handed out at once.
    pub peak: u64,
}

#[derive(Default)]
struct State {
    /// Addresses by size.
    free: BTreeMap<usize, Vec<u64>>,
    usage: PoolUsage,
}

/// The memory of one queue.
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

    /// Memory of at least so many bytes: its address, and how many it has.
    pub fn take(&self, bytes: usize) -> Result<(u64, usize)> {
        let wanted = bytes.max(1).next_multiple_of(GRAIN);
        let mut state = self.state();
        // The smallest that fits, unless half of it would lie idle.
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
            // SAFETY: acquired in `take`, and given back by the one who had it.
            unsafe { self.machine.release(self.device, address) };
        }
    }
}
