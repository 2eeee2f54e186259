//! The clock and the gates of backends on real time.

use super::{Clock, GateId, Scale, Stamp, TaskId};
use crate::Result;
use allfold_base::lock;
use allfold_kernels::ticks;
use allfold_sim::{DeviceWork, Picos};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::Instant;

/// The clock of a run on real time.
pub(super) struct RealTime {
    start: Instant,
    /// The processor's time-stamp counter at the start, if stamps are its ticks.
    ticks: Option<u64>,
    gates: Mutex<Gates>,
}

#[derive(Default)]
struct Gates {
    all: BTreeMap<GateId, Arc<Gate>>,
    next: u32,
}

#[derive(Default)]
struct Gate {
    count: Mutex<u64>,
    raised: Condvar,
}

/// Whether the system's clock uses the processor's time-stamp counter, which then has one rate on all cores.
static STEADY: LazyLock<bool> = LazyLock::new(|| {
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    source.is_ok_and(|name| name.trim() == "tsc")
});

impl RealTime {
    /// A clock that starts at 0 now.
    #[allow(clippy::disallowed_methods, reason = "here time is real")]
    pub fn start() -> RealTime {
        let ticks = STEADY.then(ticks);
        RealTime { start: Instant::now(), ticks, gates: Mutex::default() }
    }

    fn picos(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos() * 1_000).unwrap_or(u64::MAX)
    }

    fn get(&self, id: GateId) -> Arc<Gate> {
        lock(&self.gates).all[&id].clone()
    }

    /// Number of gates.
    #[cfg(test)]
    pub fn gates(&self) -> usize {
        lock(&self.gates).all.len()
    }
}

impl Clock for RealTime {
    fn now(&self, _actor: TaskId) -> Picos {
        Picos(self.picos())
    }

    fn stamp(&self, _actor: TaskId) -> Stamp {
        Stamp(self.ticks.map_or_else(|| self.picos(), |start| ticks().saturating_sub(start)))
    }

    fn scale(&self) -> Scale {
        let Some(start) = self.ticks else { return Scale::SAME };
        // The rate of the counter is its average since the start. The counter is read before the clock, so that no stamp is converted to
        // a time before the time at which it was taken.
        let count = ticks().saturating_sub(start).max(1);
        Scale { picos: self.picos(), count }
    }

    fn charge(&self, _actor: TaskId, _work: &DeviceWork) {}

    fn gate(&self) -> GateId {
        let mut gates = lock(&self.gates);
        let id = GateId(gates.next);
        gates.next += 1;
        gates.all.insert(id, Arc::default());
        id
    }

    fn discard(&self, gate: GateId) {
        lock(&self.gates).all.remove(&gate);
    }

    fn raise(&self, _actor: TaskId, gate: GateId) {
        let gate = self.get(gate);
        *lock(&gate.count) += 1;
        gate.raised.notify_all();
    }

    fn pass(&self, _actor: TaskId, gate: GateId, count: u64) -> Result<()> {
        let gate = self.get(gate);
        let mut now = lock(&gate.count);
        while *now < count {
            now = gate.raised.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    fn passed(&self, _actor: TaskId, gate: GateId, count: u64) -> bool {
        *lock(&self.get(gate).count) >= count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_times_in_their_order_and_none_is_to_come() {
        let (task, mut clock) = (TaskId(0), RealTime::start());
        for counted in [clock.ticks.is_some(), false] {
            clock.ticks = clock.ticks.filter(|_| counted);
            let stamps: Vec<Stamp> = (0..100).map(|_| clock.stamp(task)).collect();
            let scale = clock.scale();
            let times: Vec<Picos> = stamps.iter().map(|stamp| scale.time(*stamp)).collect();
            assert!(stamps.is_sorted() && times.is_sorted(), "{times:?}");
            assert!(times[99] > times[0] && times[99] <= clock.now(task));
        }
    }
}
