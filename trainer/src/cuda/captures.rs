//! Which parts of a training step are CUDA graphs. A part runs uncaptured the first time, which compiles what it needs; is captured
//! the second time; and is replayed from then on.
//!
//! NCCL requires that a collective is captured on all ranks or on none; a replay counts as captured. So all ranks must decide
//! alike, without communication: a part is looked up by a [`StepPart`], and whenever two ranks run the same part of a step, each
//! rank has seen its own `StepPart` equally often. Where ranks have equally many samples, this holds because all ranks run the same
//! parts. Under `uneven` ranks run different parts: the number of samples of all ranks together, which every rank knows from the
//! sampler, determines the number of each rank, so a `StepPart` contains that total, and the number of the micro-batch too.

use crate::Result;
use allfold_kernels::cuda::{CudaGraph, CudaMachine, Queue};
use std::collections::BTreeMap;

/// The properties of a part of a step that its captured graph depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StepPart {
    /// The number of samples of all ranks in the step.
    pub everywhere: u64,
    /// The number of the micro-batch if `uneven` is set; else 0, since all micro-batches in the middle of a step have the same
    /// shape.
    pub place: usize,
    /// The number of this rank's samples in the micro-batch.
    pub samples: usize,
    /// The bits of the loss's divisor, which includes the loss scale.
    pub divisor: u32,
    /// Whether this is the first micro-batch of the step.
    pub first: bool,
    /// Whether this is the last micro-batch of the step, with which gradients are exchanged.
    pub last: bool,
}

/// The state of a part of a step that becomes a graph.
enum GraphState {
    /// The part has run once, uncaptured.
    Warm,
    Captured(CudaGraph),
}

/// The parts of a step that have been run, and their graphs.
#[derive(Default)]
pub(super) struct Captures {
    courses: BTreeMap<StepPart, GraphState>,
}

impl Captures {
    /// The number of parts that have become graphs.
    pub fn graphs(&self) -> usize {
        self.courses.values().filter(|course| matches!(course, GraphState::Captured(_))).count()
    }

    /// Runs `body`, the work of `part`: uncaptured the first time, captured as a graph the second time, and as that graph from then
    /// on. If `capturable` is false and the part is new, `body` runs uncaptured and the part is not remembered.
    ///
    /// # Errors
    /// The error of `body` or of the driver.
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
        // SAFETY: the memory that the graph names belongs to the state and lives as long, or belongs to the queue's pool, which
        // frees nothing while the state lives. None of this memory is replaced.
        unsafe { machine.replay(queue.stream(), graph) }?;
        Ok(())
    }

    /// Destroys all graphs, because NCCL's abort waits for graphs that contain its collectives.
    pub fn clear(&mut self, machine: &dyn CudaMachine) {
        for course in std::mem::take(&mut self.courses).into_values() {
            if let GraphState::Captured(graph) = course {
                machine.forget(graph);
            }
        }
    }
}
