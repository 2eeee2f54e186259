//! Gates on real time: counts that threads of one process wait for.

use super::GateId;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// All gates of a run.
#[derive(Default)]
pub(super) struct Gates(Mutex<Vec<Arc<Gate>>>);

#[derive(Default)]
struct Gate {
    count: Mutex<u64>,
    raised: Condvar,
}

impl Gates {
    /// A new gate, at count 0.
    pub fn make(&self) -> GateId {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gates.push(Arc::default());
        GateId(gates.len() as u32 - 1)
    }

    /// Adds one to a gate's count.
    pub fn raise(&self, gate: GateId) {
        let gate = self.get(gate);
        *gate.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        gate.raised.notify_all();
    }

    /// Waits until a gate's count is `count` or more.
    pub fn pass(&self, gate: GateId, count: u64) {
        let gate = self.get(gate);
        let mut now = gate.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *now < count {
            now = gate.raised.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether a gate's count is `count` or more.
    pub fn passed(&self, gate: GateId, count: u64) -> bool {
        *self.get(gate).count.lock().unwrap_or_else(PoisonError::into_inner) >= count
    }

    fn get(&self, GateId(id): GateId) -> Arc<Gate> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[id as usize].clone()
    }
}
