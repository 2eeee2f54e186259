//! Gates: each counts arrivals, and tasks wait for a count.

use crate::backends::{GateId, TaskId};

/// A gate: its count, and the tasks that wait for a count.
#[derive(Default)]
struct Gate {
    count: u64,
    waiting: Vec<(TaskId, u64)>,
}

/// All gates of a world.
#[derive(Default)]
pub(super) struct Gates(Vec<Gate>);

impl Gates {
    pub fn add(&mut self) -> GateId {
        self.0.push(Gate::default());
        GateId(self.0.len() as u32 - 1)
    }

    pub fn count(&self, GateId(gate): GateId) -> u64 {
        self.0[gate as usize].count
    }

    /// Lets a task wait for a count.
    pub fn wait(&mut self, GateId(gate): GateId, task: TaskId, count: u64) {
        self.0[gate as usize].waiting.push((task, count));
    }

    /// Counts one more arrival and returns the tasks that waited for it.
    pub fn raise(&mut self, GateId(gate): GateId) -> Vec<TaskId> {
        let gate = &mut self.0[gate as usize];
        gate.count += 1;
        let count = gate.count;
        gate.waiting.extract_if(.., |(_, wanted)| *wanted <= count).map(|(task, _)| task).collect()
    }
}
