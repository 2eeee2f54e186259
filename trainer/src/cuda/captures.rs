//! Which parts of a step are graphs: each runs once as it is, which compiles what it needs, then is captured, then is replayed.
//!
//! NCCL wants a collective to be captured on all ranks or on none, and what is replayed counts as captured. So all ranks must
//! decide alike, and nobody asks the others: a part is looked up by a [`StepPart`], and whenever two ranks run the same one of a
//! step, each has seen its own `StepPart` equally often. Where ranks have equally many samples this is so because they run the same
//! parts. Under `uneven` they do not: the samples of all ranks together, which every rank knows from the sampler, say how many
//! each rank has, so a `StepPart` names them, and the place of the micro-batch too.

use crate::Result;
use allfold_kernels::cuda::{CudaGraph, CudaMachine, Queue};
use std::collections::BTreeMap;

/// The properties of a part of a step that its captured graph depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StepPart {
    /// Samples of all ranks in the step.
    pub everywhere: u64,
    /// The number of the micro-batch if ranks are uneven, else 0, since micro-batches in the middle of a step are alike.
    pub place: usize,
    /// This rank's samples in the micro-batch.
    pub samples: usize,
    /// Bits of the divisor of the loss, in which the loss scale is.
    pub divisor: u32,
    /// The first micro-batch of the step.
    pub first: bool,
    /// Whether this is the last micro-batch of the step, with which gradients are exchanged.
    pub last: bool,
}

/// A part on its way to being a graph.
enum GraphState {
    /// The pass has run once, uncaptured.
    Warm,
    Captured(CudaGraph),
}

/// The parts that have been run, and their graphs.
#[derive(Default)]
pub(super) struct Captures {
    courses: BTreeMap<StepPart, GraphState>,
}

impl Captures {
    /// Parts that are graphs.
    pub fn graphs(&self) -> usize {
        self.courses.values().filter(|course| matches!(course, GraphState::Captured(_))).count()
    }

    /// Runs a part: the first time as it is, the second as a graph that is captured, then that graph. Where `capturable` does
    /// not hold, always as it is.
    ///
    /// # Errors
    /// What the body or the driver says.
    pub fn run(
        &mut self,
        queue: &Queue,
        part: StepPart,
        capturable: bool,
        body: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let machine = queue.machine();
        let graph = match self.courses.get(&part) {
            Some(GraphState::Captured(graph)) => *graph,
            Some(GraphState::Warm) => {
                machine.begin_capture(queue.stream())?;
                let done = body();
                // The capture is ended even if the body failed; the stream would stay in capture mode otherwise.
                let graph = machine.end_capture(queue.stream());
                done?;
                let graph = graph?;
                self.courses.insert(part, GraphState::Captured(graph));
                graph
            }
            None => {
                if capturable {
                    self.courses.insert(part, GraphState::Warm);
                }
                return body();
            }
        };
        #[allow(unsafe_code, reason = "graphs name memory by address")]
        // SAFETY: what the graph names is the state's own and as long-lived, or of the queue's pool, which gives nothing back
        // while the state lives; none of it is replaced.
        unsafe { machine.replay(queue.stream(), graph) }?;
        Ok(())
    }

    /// Destroys all graphs. NCCL's abort waits for those that hold its collectives.
    pub fn clear(&mut self, machine: &dyn CudaMachine) {
        for course in std::mem::take(&mut self.courses).into_values() {
            if let GraphState::Captured(graph) = course {
                machine.forget(graph);
            }
        }
    }
}
