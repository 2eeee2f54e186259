//! When every stage does what, where messages take no time: the idle time that a schedule leaves.

use super::{Action, StageMessage, StageSchedule};
use std::collections::BTreeMap;

/// The time that each pass through a chunk takes, in any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassCosts {
    /// Forward.
    pub forward: u64,
    /// Backward, for the gradients of inputs.
    pub input_grad: u64,
    /// Backward, for the gradients of weights.
    pub weight_grad: u64,
}

/// When each stage does each of its actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageTimeline {
    /// For each stage: its actions with their starts and ends, in order.
    pub stages: Vec<Vec<(Action, u64, u64)>>,
}

impl StageTimeline {
    /// From the first start to the last end.
    pub fn makespan(&self) -> u64 {
        let ends = self.stages.iter().flatten().map(|(_, _, end)| *end);
        ends.max().unwrap_or(0)
    }

    /// The idle time of the busiest stage between its own first action and the end of its last, with what it waits at the step's
    /// beginning: the step's length beyond the stage's work.
    pub fn bubble(&self) -> u64 {
        let busy =
            |stage: &Vec<(Action, u64, u64)>| stage.iter().map(|(_, start, end)| end - start).sum::<u64>();
        self.makespan() - self.stages.iter().map(busy).max().unwrap_or(0)
    }
}

/// Runs a schedule on a clock.
///
/// # Errors
/// What [`StageSchedule::actions`] refuses, or stages that wait for each other.
pub fn timeline(
    schedule: StageSchedule,
    stages: usize,
    micros: usize,
    costs: PassCosts,
) -> Result<StageTimeline, String> {
    let all =
        (0..stages).map(|stage| schedule.actions(stage, stages, micros)).collect::<Result<Vec<_>, _>>()?;
    let chunks = schedule.chunks(stages);
    let mut arrived: BTreeMap<StageMessage, u64> = BTreeMap::new();
    let mut done: Vec<Vec<(Action, u64, u64)>> = vec![Vec::new(); stages];
    let mut moved = true;
    while moved {
        moved = false;
        for stage in 0..stages {
            while let Some(&action) = all[stage].get(done[stage].len()) {
                let [receive, send] = action.messages(chunks, stages);
                let free = done[stage].last().map_or(0, |(_, _, end)| *end);
                let start = match receive.map(|message| arrived.get(&message)) {
                    Some(None) => break,
                    Some(Some(&at)) => at.max(free),
                    None => free,
                };
                let takes = match action {
                    Action::Forward { .. } => costs.forward,
                    Action::Backward { .. } => costs.input_grad + costs.weight_grad,
                    Action::InputGrad { .. } => costs.input_grad,
                    Action::WeightGrad { .. } => costs.weight_grad,
                };
                done[stage].push((action, start, start + takes));
                if let Some(message) = send {
                    arrived.insert(message, start + takes);
                }
                moved = true;
            }
        }
    }
    match (0..stages).find(|&stage| done[stage].len() < all[stage].len()) {
        Some(stage) => Err(format!("stage {stage} waits for ever")),
        None => Ok(StageTimeline { stages: done }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formulas are those of the papers that [`StageSchedule`] names: idle time of a step, with F, B and W the times of one
    /// micro-batch through one stage, all of its chunks.
    #[test]
    fn idle_times_are_the_published_ones() {
        for (forward, input_grad, weight_grad) in [(1, 1, 1), (10, 12, 7), (60, 60, 120), (120, 180, 60)] {
            for stages in 1..=8u64 {
                for micros in [stages, 2 * stages, 5 * stages] {
                    let costs = PassCosts { forward, input_grad, weight_grad };
                    let bubble = |schedule, costs| {
                        timeline(schedule, stages as usize, micros as usize, costs).unwrap().bubble()
                    };
                    let step = forward + input_grad + weight_grad;
                    let said = format!("{stages} stages, {micros} micro-batches, {costs:?}");
                    assert_eq!(bubble(StageSchedule::GPipe, costs), (stages - 1) * step, "{said}");
                    assert_eq!(bubble(StageSchedule::OneFOneB, costs), (stages - 1) * step, "{said}");
                    for chunks in 1..=4u64 {
                        // The costs of a chunk; of a stage they are as many times as much.
                        let schedule = StageSchedule::Interleaved { chunks: chunks as usize };
                        assert_eq!(bubble(schedule, costs), (stages - 1) * step, "{said}, {chunks} chunks");
                    }
                    // Where weight gradients take no longer than what they fill.
                    if weight_grad <= input_grad && weight_grad <= forward {
                        let left = (stages - 1) * (forward + input_grad - weight_grad);
                        assert_eq!(bubble(StageSchedule::ZbH1, costs), left, "{said}");
                    }
                }
            }
        }
    }
}
