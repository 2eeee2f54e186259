//! The table `[lr_schedule]`: how the learning rate changes over a run.

use crate::{Error, Result};
use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// The shape of the learning rate over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrScheduleName {
    /// The same rate all the time.
    #[default]
    Constant,
    /// Times `factor` after every `every` steps.
    Step,
    /// Times `factor` at each of `milestones`.
    Milestones,
    /// Times `factor` after every step.
    Exponential,
    /// Down to 0 at the last step, by the power `power`.
    Polynomial,
    /// Half a cosine, down to `floor` at the last step.
    Cosine,
    /// Half a cosine over `every` steps, then again, each time `factor` times as long.
    Restarts,
    /// Up from a 25th of the rate over the first 30 % of the steps, then down to nearly 0.
    OneCycle,
    /// Times `factor` after more than `patience` epochs without a better score.
    Plateau,
}

impl LrScheduleName {
    /// Whether the rates depend on where the run ends.
    pub fn spans_the_run(self) -> bool {
        matches!(self, LrScheduleName::Polynomial | LrScheduleName::Cosine | LrScheduleName::OneCycle)
    }
}

/// What a schedule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrUnit {
    /// Steps, after the warm-up.
    #[default]
    Step,
    /// Epochs, from the start of the run.
    Epoch,
}

/// How the learning rate changes over a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct LrScheduleConfig {
    /// `constant`, `step`, `milestones`, `exponential`, `polynomial`, `cosine`, `restarts`, `one_cycle` or `plateau`.
    pub name: LrScheduleName,
    /// What the schedule counts: `step`, or `epoch`. With `epoch`, the rate changes between epochs only, `lr_schedule.every` and
    /// `lr_schedule.milestones` are epochs, and epochs count from the start of the run, not from the end of the warm-up.
    pub unit: LrUnit,
    /// Warm-up steps, in which the rate rises linearly before the schedule begins.
    pub warmup_steps: u64,
    /// The fraction of the rate that the warm-up starts from.
    pub warmup_from: f64,
    /// Steps (or epochs, by `lr_schedule.unit`) between two changes of the step schedule; length of the first period of restarts.
    pub every: u64,
    /// Factor of the rate in step, milestones, exponential and plateau; factor of each next period's length in restarts.
    pub factor: f64,
    /// Steps (or epochs, by `lr_schedule.unit`) at which the milestones schedule changes the rate.
    pub milestones: Vec<u64>,
    /// The rate at which a cosine ends; the lowest rate of plateau.
    pub floor: f64,
    /// The polynomial's power.
    pub power: f64,
    /// After more than this many epochs without a better score, plateau lowers the rate.
    pub patience: u64,
    /// The share of the best score by which a better score must exceed it, for plateau.
    pub threshold: f64,
    /// Epochs after a lower rate in which plateau does not count.
    pub cooldown: u64,
}

impl Default for LrScheduleConfig {
    fn default() -> LrScheduleConfig {
        LrScheduleConfig {
            name: LrScheduleName::default(),
            unit: LrUnit::default(),
            warmup_steps: 0,
            warmup_from: 0.1,
            every: 100,
            factor: 0.5,
            milestones: Vec::new(),
            floor: 0.0,
            power: 1.0,
            patience: 10,
            threshold: 1e-4,
            cooldown: 0,
        }
    }
}

impl LrScheduleConfig {
    /// Checks that the periods of `restarts` do not become shorter, that `plateau` lowers the rate, and that there are milestones where
    /// they are used.
    pub(crate) fn check(&self) -> Result<()> {
        let (name, factor) = (self.name, self.factor);
        let uses_milestones = name == LrScheduleName::Milestones;
        let wrong = match name {
            LrScheduleName::Restarts if factor < 1.0 => format!(
                "`lr_schedule.factor` is {factor}; `restarts` needs 1 or more, so that no period is shorter than the one before"
            ),
            LrScheduleName::Plateau if factor >= 1.0 => format!(
                "`lr_schedule.factor` is {factor}; `plateau` needs less than 1, so that the rate is lowered"
            ),
            LrScheduleName::Milestones if self.milestones.is_empty() => {
                "the schedule `milestones` needs `lr_schedule.milestones`".into()
            }
            _ if !uses_milestones && !self.milestones.is_empty() => {
                "`lr_schedule.milestones` needs `lr_schedule.name = \"milestones\"`".into()
            }
            _ => return Ok(()),
        };
        Err(Error(wrong))
    }
}
