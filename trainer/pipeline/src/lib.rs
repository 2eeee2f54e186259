//! Schedules of pipeline parallelism: what each stage does, and in which order.
//!
//! The layers of a network are cut into chunks, each held by one stage. A batch is cut into micro-batches, and each passes
//! forward through all chunks and backward again. A schedule is a pure function from (stage, stages, micro-batches) to a
//! list of actions. [`check()`] proves that a schedule is complete and cannot deadlock, [`channels()`] says which
//! communicator carries which message, and [`timeline()`] says how long the stages are idle.
//!
//! | schedule | source | bubble | activations on stage s of p, in chunks |
//! |---|---|---|---|
//! | `gpipe` | Huang et al., 2019, arXiv:1811.06965 | (p-1)(f+b+w) | m |
//! | `1f1b` | Narayanan et al., SC 2021, arXiv:2104.04473 | (p-1)(f+b+w) | min(m, p-s) |
//! | `interleaved` | the same, v chunks on a stage | (p-1)(f+b+w)/v | min(mv, 2(p-1-s) + (v-1)p + 1) |
//! | `zb_h1` | Qi et al., ICLR 2024, arXiv:2401.10241 | (p-1)(f+b-w) | min(m, p) |
//! | `zb_v` | the same; also Qi et al., NeurIPS 2024, arXiv:2405.15362 | 0 | 2p, at most 2m |
//!
//! Here f, b and w are the times of a whole stage for one micro-batch: forward, gradient of the input, gradients of the
//! weights; m is the number of micro-batches. [`PipelineTimeline::bubble`] says under which conditions a row holds.
//!
//! ```
//! use allfold_pipeline::{Action, PipelineSchedule, check};
//!
//! let last = PipelineSchedule::OneFOneB.actions(1, 2, 2).unwrap();
//! let (forward, backward) = (|micro| Action::Forward { chunk: 1, micro }, |micro| Action::Backward { chunk: 1, micro });
//! assert_eq!(last, [forward(0), backward(0), forward(1), backward(1)]);
//! assert_eq!(check(PipelineSchedule::OneFOneB, 4, 8).unwrap().peak, [4, 3, 2, 1]);
//! ```

mod action;
mod bubble;
mod channels;
mod check;
mod execution;
mod orders;

pub use action::Action;
pub use bubble::{ChunkCosts, PipelineTimeline, TimedAction, timeline};
pub use channels::{BoundaryChannels, channels};
pub use check::{PipelineProof, check};

use serde::{Deserialize, Serialize};

/// The published pipeline schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes.
    #[serde(rename = "gpipe")]
    GPipe,
    /// One forward and one backward pass in turn, with as few micro-batches in flight as keep all stages busy.
    #[serde(rename = "1f1b")]
    OneFOneB,
    /// 1F1B with several chunks on each stage, which divides the bubble by their number and multiplies the messages.
    #[serde(rename = "interleaved")]
    Interleaved {
        /// The number of chunks on each stage.
        chunks: usize,
    },
    /// 1F1B with separate weight gradients, postponed into what was idle time.
    #[serde(rename = "zb_h1")]
    ZbH1,
    /// Two chunks on each stage, so that the last stage is in the middle of the network and the first holds both ends.
    #[serde(rename = "zb_v")]
    ZbV,
}

impl PipelineSchedule {
    /// The name of the schedule in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            PipelineSchedule::GPipe => "gpipe",
            PipelineSchedule::OneFOneB => "1f1b",
            PipelineSchedule::Interleaved { .. } => "interleaved",
            PipelineSchedule::ZbH1 => "zb_h1",
            PipelineSchedule::ZbV => "zb_v",
        }
    }

    /// The number of chunks of the whole network.
    pub fn chunks(self, stages: usize) -> usize {
        match self {
            PipelineSchedule::Interleaved { chunks } => stages * chunks,
            PipelineSchedule::ZbV => 2 * stages,
            _ => stages,
        }
    }

    /// The stage that holds a chunk: chunk 0 is on stage 0, the next on stage 1 and so on; after the last stage,
    /// `interleaved` continues at stage 0, and `zb_v` returns from the last stage to stage 0.
    ///
    /// `chunk` must be less than [`PipelineSchedule::chunks`].
    pub fn stage_of(self, chunk: usize, stages: usize) -> usize {
        match self {
            PipelineSchedule::ZbV if chunk >= stages => 2 * stages - 1 - chunk,
            _ => chunk % stages,
        }
    }

    /// What a stage does, in order. The backward passes of a chunk are in the order of the micro-batches.
    ///
    /// # Errors
    /// There is no such stage, no micro-batch or no chunk; `interleaved` needs a multiple of `stages` micro-batches.
    pub fn actions(self, stage: usize, stages: usize, micros: usize) -> Result<Vec<Action>, String> {
        let name = self.name();
        if stage >= stages {
            return Err(format!(
                "{name}: there is no stage {stage} among {stages} stages: they are numbered from 0"
            ));
        }
        if micros == 0 {
            return Err(format!("{name}: no micro-batches: their number must be 1 or more"));
        }
        Ok(match self {
            PipelineSchedule::GPipe => orders::gpipe(stage, micros),
            PipelineSchedule::OneFOneB => orders::one_f_one_b(stage, stages, micros),
            PipelineSchedule::Interleaved { chunks: 0 } => {
                return Err(format!("{name}: no chunks: their number on each stage must be 1 or more"));
            }
            PipelineSchedule::Interleaved { .. } if !micros.is_multiple_of(stages) => {
                return Err(format!(
                    "{name}: {micros} micro-batches: their number must be a multiple of {stages} stages"
                ));
            }
            PipelineSchedule::Interleaved { chunks } => orders::interleaved(stage, stages, chunks, micros),
            PipelineSchedule::ZbH1 => orders::zb_h1(stage, stages, micros),
            PipelineSchedule::ZbV => orders::zb_v(stage, stages, micros),
        })
    }

    /// The actions of every stage.
    fn all_actions(self, stages: usize, micros: usize) -> Result<Vec<Vec<Action>>, String> {
        if stages == 0 {
            return Err(format!("{}: no stages: their number must be 1 or more", self.name()));
        }
        (0..stages).map(|stage| self.actions(stage, stages, micros)).collect()
    }
}

/// Every schedule, `interleaved` with 1 to 4 chunks on a stage.
#[cfg(test)]
const TESTED: [PipelineSchedule; 8] = [
    PipelineSchedule::GPipe,
    PipelineSchedule::OneFOneB,
    PipelineSchedule::Interleaved { chunks: 1 },
    PipelineSchedule::Interleaved { chunks: 2 },
    PipelineSchedule::Interleaved { chunks: 3 },
    PipelineSchedule::Interleaved { chunks: 4 },
    PipelineSchedule::ZbH1,
    PipelineSchedule::ZbV,
];

/// Every schedule with stages 1 to `stages` and micro-batches 1 to `micros`, where `interleaved` allows them.
#[cfg(test)]
fn tested(stages: usize, micros: usize) -> impl Iterator<Item = (PipelineSchedule, usize, usize)> {
    let sizes = (1..=stages).flat_map(move |p| (1..=micros).map(move |m| (p, m)));
    sizes.flat_map(|(p, m)| TESTED.map(|schedule| (schedule, p, m))).filter(|(schedule, p, m)| {
        !matches!(schedule, PipelineSchedule::Interleaved { .. }) || m.is_multiple_of(*p)
    })
}

#[cfg(test)]
mod tests {
    use super::{PipelineSchedule, TESTED};

    #[test]
    fn sizes_that_do_not_fit_are_refused_in_one_line() {
        let text =
            |schedule: PipelineSchedule, stages, micros| schedule.all_actions(stages, micros).unwrap_err();
        for schedule in TESTED {
            assert!(text(schedule, 0, 4).ends_with("no stages: their number must be 1 or more"));
            assert!(text(schedule, 4, 0).ends_with("no micro-batches: their number must be 1 or more"));
            assert!(schedule.actions(2, 2, 4).unwrap_err().starts_with(schedule.name()));
        }
        let interleaved = |chunks| PipelineSchedule::Interleaved { chunks };
        assert!(
            text(interleaved(0), 4, 4).ends_with("no chunks: their number on each stage must be 1 or more")
        );
        let uneven = "interleaved: 6 micro-batches: their number must be a multiple of 4 stages";
        assert_eq!(text(interleaved(2), 4, 6), uneven);
    }

    #[test]
    fn a_configuration_gives_a_schedule_by_its_name() {
        for schedule in TESTED {
            let text = match schedule {
                PipelineSchedule::Interleaved { chunks } => {
                    format!(r#"{{"interleaved":{{"chunks":{chunks}}}}}"#)
                }
                _ => format!("{:?}", schedule.name()),
            };
            assert_eq!(serde_json::to_string(&schedule).unwrap(), text);
            assert_eq!(serde_json::from_str::<PipelineSchedule>(&text).unwrap(), schedule);
        }
    }
}
