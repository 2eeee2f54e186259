//! Which parts of a training step are CUDA graphs. A part runs uncaptured the first time, which compiles what it needs; is captured
//! the second time; and is replayed from then on.
//!
//! A part begins when a micro-batch is loaded and ends before the next one is, or before the optimiser's launch. While a part is
//! replayed its graph is under way already, so the driver's calls queue nothing.
//!
//! NCCL requires that a collective is captured on all ranks or on none; a replay counts as captured. So all ranks must decide
//! alike, without communication: a part is looked up by a [`StepPart`], and whenever two ranks run the same part of a step, each
//! rank has seen its own `StepPart` equally often. Where ranks have equally many samples, this holds because all ranks run the same
//! parts. Under `uneven` ranks run different parts: the number of samples of all ranks together, which every rank gets from the
//! sampler, determines the number of each rank, so a `StepPart` contains that total, and the number of the micro-batch too.

use crate::Result;
use allfold_cuda::{CudaGraph, CudaMachine, NvtxRange, Queue};
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

/// How the part that has begun runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// Its work is launched as it is queued.
    Launched,
    /// What is queued becomes a graph.
    Captured(StepPart),
    /// The graph of an earlier capture runs.
    Replayed,
}

/// The parts of a step that have been run, and their graphs.
#[derive(Default)]
pub(super) struct Captures {
    parts: BTreeMap<StepPart, GraphState>,
    /// How the part that has begun runs, if one has.
    course: Option<Course>,
}

impl Captures {
    /// The number of parts that have become graphs.
    pub fn graphs(&self) -> usize {
        self.parts.values().filter(|part| matches!(part, GraphState::Captured(_))).count()
    }

    /// Whether the part that has begun is replayed: its work must not be queued again.
    pub fn replays(&self) -> bool {
        self.course == Some(Course::Replayed)
    }

    /// Whether a part has begun and not ended.
    pub fn in_part(&self) -> bool {
        self.course.is_some()
    }

    /// Begins `part`: launched the first time, captured the second time, and replayed from then on. If `capturable` is false, a new
    /// part is launched and not remembered.
    ///
    /// # Errors
    /// The driver's.
    pub fn begin(&mut self, queue: &Queue, part: StepPart, capturable: bool) -> Result<()> {
        let course = match self.parts.get(&part) {
            Some(GraphState::Captured(graph)) => {
                replay(queue, *graph)?;
                Course::Replayed
            }
            Some(GraphState::Warm) => {
                queue.machine().begin_capture(queue.stream())?;
                Course::Captured(part)
            }
            None => {
                if capturable {
                    self.parts.insert(part, GraphState::Warm);
                }
                Course::Launched
            }
        };
        self.course = Some(course);
        Ok(())
    }

    /// Ends the part that has begun; a part that was captured runs now.
    ///
    /// # Errors
    /// The driver's.
    pub fn end(&mut self, queue: &Queue) -> Result<()> {
        if let Some(Course::Captured(part)) = self.course.take() {
            let graph = queue.machine().end_capture(queue.stream())?;
            self.parts.insert(part, GraphState::Captured(graph));
            replay(queue, graph)?;
        }
        Ok(())
    }

    /// Destroys all graphs, because NCCL's abort waits for graphs that contain its collectives. A capture that failed half-way is
    /// ended first: the stream would stay in capture mode otherwise.
    pub fn clear(&mut self, queue: &Queue) {
        let machine: &dyn CudaMachine = &**queue.machine();
        if let Some(Course::Captured(_)) = self.course.take()
            && let Ok(graph) = machine.end_capture(queue.stream())
        {
            machine.forget(graph);
        }
        for part in std::mem::take(&mut self.parts).into_values() {
            if let GraphState::Captured(graph) = part {
                machine.forget(graph);
            }
        }
    }
}

fn replay(queue: &Queue, graph: CudaGraph) -> Result<()> {
    let _range = NvtxRange::begin(c"replay");
    #[allow(unsafe_code, reason = "graphs name memory by address")]
    // SAFETY: the memory that the graph names belongs to the worker and lives as long, or belongs to the queue's pool, which
    // frees nothing while the worker lives. None of this memory is replaced.
    unsafe { queue.machine().replay(queue.stream(), graph) }?;
    Ok(())
}
