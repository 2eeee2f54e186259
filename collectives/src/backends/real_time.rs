//! What is the same wherever time is real: the clock, and gates that threads of one process wait for.

use super::{ActorId, Clock, GateId};
use crate::Result;
use allfold_sim::{Picos, Work};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// The clock of a run on real time.
pub(super) struct RealTime {
    start: Instant,
    gates: Mutex<Vec<Arc<Gate>>>,
}

#[derive(Default)]
struct Gate {
    count: Mutex<u64>,
    raised: Condvar,
}

impl RealTime {
    /// It is 0 now.
    #[allow(clippy::disallowed_methods, reason = "here time is real")]
    pub fn start() -> RealTime {
        RealTime { start: Instant::now(), gates: Mutex::default() }
    }

    fn get(&self, GateId(id): GateId) -> Arc<Gate> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)[id as usize].clone()
    }
}

impl Clock for RealTime {
    fn now(&self, _actor: ActorId) -> Picos {
        Picos(u64::try_from(self.start.elapsed().as_nanos() * 1_000).unwrap_or(u64::MAX))
    }

    fn charge(&self, _actor: ActorId, _work: &Work) {}

    fn gate(&self) -> GateId {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.push(Arc::default());
        GateId(gates.len() as u32 - 1)
    }

    fn raise(&self, _actor: ActorId, gate: GateId) {
        let gate = self.get(gate);
        *gate.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        gate.raised.notify_all();
    }

    fn pass(&self, _actor: ActorId, gate: GateId, count: u64) -> Result<()> {
        let gate = self.get(gate);
        let mut now = gate.count.lock().unwrap_or_else(PoisonError::into_inner);
        while *now < count {
            now = gate.raised.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    fn passed(&self, _actor: ActorId, gate: GateId, count: u64) -> bool {
        *self.get(gate).count.lock().unwrap_or_else(PoisonError::into_inner) >= count
    }
}
