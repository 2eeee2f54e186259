//! Pipeline schedules: what each stage does in which order, as pure functions, with a checker and a clock.
//!
//! ```text
//! 1f1b, 3 stages, 4 micro-batches     stage 0   F0 F1 F2 B0 F3 B1 B2 B3
//!                                     stage 1   F0 F1 B0 F2 B1 F3 B2 B3
//!                                     stage 2   F0 B0 F1 B1 F2 B2 F3 B3
//! ```
//!
//! ```
//! use allfold_pipeline::{Action, PassCosts, StageSchedule, check, timeline};
//!
//! let first = StageSchedule::OneFOneB.actions(2, 3, 4)?;
//! assert_eq!(first[..2], [Action::Forward { chunk: 2, micro: 0 }, Action::Backward { chunk: 2, micro: 0 }]);
//! // No stage is ever stuck, and stage i holds no more than 3 - i micro-batches.
//! assert_eq!(check(StageSchedule::OneFOneB, 3, 4)?.in_flight, [3, 2, 1]);
//! // Idle: two passes forward and backward.
//! let costs = PassCosts { forward: 10, input_grad: 10, weight_grad: 10 };
//! assert_eq!(timeline(StageSchedule::OneFOneB, 3, 4, costs)?.bubble(), 60);
//! # Ok::<_, String>(())
//! ```
//!
//! The layers of a network are cut into chunks; chunk c runs on stage c modulo the number of stages. Backward passes go through
//! micro-batches in the order 0, 1, 2, .. in every schedule, so that gradients are added up in one order.

mod check;
mod timeline;

pub use check::{ScheduleProof, check, check_actions};
pub use timeline::{PassCosts, StageTimeline, timeline};

/// What a stage does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// A micro-batch goes forward through a chunk.
    Forward {
        /// The chunk, counted over the whole network.
        chunk: usize,
        /// The micro-batch.
        micro: usize,
    },
    /// Backward: the gradients of inputs and weights.
    Backward {
        /// The chunk.
        chunk: usize,
        /// The micro-batch.
        micro: usize,
    },
    /// Backward: the gradients of inputs alone.
    InputGrad {
        /// The chunk.
        chunk: usize,
        /// The micro-batch.
        micro: usize,
    },
    /// Backward: the gradients of weights that [`Action::InputGrad`] put off.
    WeightGrad {
        /// The chunk.
        chunk: usize,
        /// The micro-batch.
        micro: usize,
    },
}

/// A published schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageSchedule {
    /// All forward passes, then all backward passes (Y. Huang et al., "GPipe", NeurIPS 2019).
    GPipe,
    /// One forward pass and one backward pass in turn, after a warm-up: a stage holds no more micro-batches than there are stages
    /// from it on (D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021, section 2.2).
    OneFOneB,
    /// 1F1B over several chunks of each stage, which shortens the idle time by their number (same paper).
    Interleaved {
        /// Chunks of each stage.
        chunks: usize,
    },
    /// 1F1B with weight gradients put off into what would be idle time (P. Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
    /// 2024, schedule ZB-H1).
    ZbH1,
}

/// A message between stages: the micro-batch at the boundary before a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageMessage {
    /// The chunk behind the boundary.
    pub chunk: usize,
    /// The micro-batch.
    pub micro: usize,
    /// A gradient, which goes to the chunk before; else an activation.
    pub backward: bool,
}

impl StageSchedule {
    /// Chunks of the whole network.
    pub fn chunks(self, stages: usize) -> usize {
        match self {
            StageSchedule::Interleaved { chunks } => stages * chunks,
            _ => stages,
        }
    }

    /// Number of channels that carry messages; each carries a stage's messages one at a time, in the order in which the stage posts
    /// them. Activations and gradients have one each; where chunks go round the stages more than once, so have those that go from
    /// the last stage to the first: on one channel the stages would wait for each other for ever.
    pub fn channels(self, stages: usize) -> usize {
        if self.chunks(stages) > stages { 4 } else { 2 }
    }

    /// The channel of a message.
    pub fn channel(self, message: StageMessage, stages: usize) -> usize {
        2 * usize::from(message.chunk.is_multiple_of(stages)) + usize::from(message.backward)
    }

    /// What a stage does, in order.
    ///
    /// # Errors
    /// No stage, chunk or micro-batch; or interleaved micro-batches that the stages do not divide.
    pub fn actions(self, stage: usize, stages: usize, micros: usize) -> Result<Vec<Action>, String> {
        self.fits(stages, micros)?;
        if self == StageSchedule::GPipe {
            let forward = (0..micros).map(|micro| Action::Forward { chunk: stage, micro });
            let backward = (0..micros).map(|micro| Action::Backward { chunk: stage, micro });
            return Ok(forward.chain(backward).collect());
        }
        let laps = self.chunks(stages) / stages;
        let total = micros * laps;
        let warmup = match laps {
            1 => stages - 1 - stage,
            _ => 2 * (stages - 1 - stage) + (laps - 1) * stages,
        };
        let warmup = warmup.min(total);
        // Pass i of a stage: `stages` micro-batches go through its first chunk, then through its second, and so on.
        let pass = |at: usize| {
            let lap = at % (stages * laps) / stages;
            let micro = if laps == 1 { at } else { at / (stages * laps) * stages + at % stages };
            (if laps == 1 { 0 } else { lap }, micro)
        };
        let forward = |at: usize| {
            let (lap, micro) = pass(at);
            Action::Forward { chunk: lap * stages + stage, micro }
        };
        let mut actions: Vec<Action> = (0..warmup).map(forward).collect();
        let mut put_off = 0..0;
        for at in 0..total {
            if at + warmup < total {
                actions.push(forward(at + warmup));
            }
            let (lap, micro) = pass(at);
            let chunk = (laps - 1 - lap) * stages + stage;
            if self != StageSchedule::ZbH1 {
                actions.push(Action::Backward { chunk, micro });
                continue;
            }
            actions.push(Action::InputGrad { chunk, micro });
            put_off.end += 1;
            // A stage puts off as many weight gradients as there are stages before it.
            if put_off.len() > stage {
                actions.push(Action::WeightGrad { chunk, micro: put_off.start });
                put_off.start += 1;
            }
        }
        actions.extend(put_off.map(|micro| Action::WeightGrad { chunk: stage, micro }));
        Ok(actions)
    }

    /// Whether the schedule takes so many stages and micro-batches.
    ///
    /// # Errors
    /// What it does not take, and what would be right.
    pub fn fits(self, stages: usize, micros: usize) -> Result<(), String> {
        if stages == 0 || micros == 0 {
            return Err(format!(
                "a pipeline of {stages} stages and {micros} micro-batches; both must be 1 or more"
            ));
        }
        match self {
            StageSchedule::Interleaved { chunks: 0 } => {
                Err("interleaved stages have 0 chunks; use 1 or more".into())
            }
            StageSchedule::Interleaved { chunks } if chunks > 1 && !micros.is_multiple_of(stages) => {
                Err(format!(
                    "an interleaved pipeline of {stages} stages has {micros} micro-batches; use a multiple of {stages}"
                ))
            }
            _ => Ok(()),
        }
    }
}

impl Action {
    /// The chunk and the micro-batch.
    pub fn place(self) -> (usize, usize) {
        let (Action::Forward { chunk, micro }
        | Action::Backward { chunk, micro }
        | Action::InputGrad { chunk, micro }
        | Action::WeightGrad { chunk, micro }) = self;
        (chunk, micro)
    }

    /// What a stage waits for before the action, and what it sends after it, in a network of so many chunks. A message between
    /// chunks of one stage is none.
    pub fn messages(self, chunks: usize, stages: usize) -> [Option<StageMessage>; 2] {
        let (chunk, micro) = self.place();
        let before = (chunk > 0 && stages > 1).then_some(StageMessage { chunk, micro, backward: false });
        let after = (chunk + 1 < chunks && stages > 1).then_some(StageMessage {
            chunk: chunk + 1,
            micro,
            backward: false,
        });
        let back =
            |message: Option<StageMessage>| message.map(|message| StageMessage { backward: true, ..message });
        match self {
            Action::Forward { .. } => [before, after],
            Action::Backward { .. } | Action::InputGrad { .. } => [back(after), back(before)],
            Action::WeightGrad { .. } => [None, None],
        }
    }
}
