//! The start and end of each action if messages take no time, and the idle time of each stage.

use super::{Action, PipelineSchedule};

/// The costs of the passes of one micro-batch over one chunk, in any unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkCosts {
    /// The forward pass.
    pub forward: u64,
    /// The gradient of the input.
    pub input_grad: u64,
    /// The gradients of the weights.
    pub weight_grad: u64,
}

impl ChunkCosts {
    /// The time of an action.
    pub(super) fn of(self, action: Action) -> u64 {
        match action {
            Action::Forward { .. } => self.forward,
            Action::Backward { .. } => self.input_grad + self.weight_grad,
            Action::InputGrad { .. } => self.input_grad,
            Action::WeightGrad { .. } => self.weight_grad,
        }
    }
}

/// An action with its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedAction {
    /// The action.
    pub action: Action,
    /// When the action starts, in the unit of the costs.
    pub start: u64,
    /// When the action ends.
    pub end: u64,
}

/// The times of all actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineTimeline {
    /// For each stage, its actions in order.
    pub stages: Vec<Vec<TimedAction>>,
}

impl PipelineTimeline {
    /// When the last action of all stages ends.
    pub fn makespan(&self) -> u64 {
        self.stages.iter().flatten().map(|action| action.end).max().unwrap_or(0)
    }

    /// The time that a stage computes; `stage` must be below the number of stages.
    pub fn busy(&self, stage: usize) -> u64 {
        self.stages[stage].iter().map(|action| action.end - action.start).sum()
    }

    /// The makespan less the time that the busiest stage computes.
    ///
    /// Published, and exact in the tests, with p stages, m micro-batches and the costs f, b, w of a whole stage:
    ///
    /// - `gpipe` and `1f1b`: (p-1)(f+b+w).
    /// - `interleaved` with v chunks on a stage: (p-1)(f+b+w)/v.
    /// - `zb_h1`: (p-1)(f+b-w) where w <= f, w <= b and m >= p. Without the conditions on w it is (p-1) max(f+b-w, f, b).
    /// - `zb_v`: (p-1)f/2 where f = b = w and m >= 2p-1. That is the time until the last stage starts, which is published
    ///   as no bubble: no stage idles between its first and its last action.
    pub fn bubble(&self) -> u64 {
        self.makespan() - (0..self.stages.len()).map(|stage| self.busy(stage)).max().unwrap_or(0)
    }
}

/// The times of a schedule's actions.
///
/// # Errors
/// As [`PipelineSchedule::actions`].
pub fn timeline(
    schedule: PipelineSchedule,
    stages: usize,
    micros: usize,
    costs: ChunkCosts,
) -> Result<PipelineTimeline, String> {
    let actions = schedule.all_actions(stages, micros)?;
    let chunks = schedule.chunks(stages);
    // When each pass has ended, if it has, by [backward][chunk, micro-batch].
    let mut ends = [vec![None; chunks * micros], vec![None; chunks * micros]];
    let mut timed: Vec<Vec<TimedAction>> = actions.iter().map(|own| Vec::with_capacity(own.len())).collect();
    loop {
        let before: usize = timed.iter().map(Vec::len).sum();
        for (own, timed) in actions.iter().zip(&mut timed) {
            while let Some(&action) = own.get(timed.len()) {
                let at = action.chunk() * micros + action.micro();
                let input = match action {
                    Action::Forward { chunk: 0, .. } | Action::WeightGrad { .. } => Some(0),
                    Action::Forward { .. } => ends[0][at - micros],
                    _ if action.chunk() + 1 == chunks => Some(0),
                    _ => ends[1][at + micros],
                };
                let Some(input) = input else { break };
                let start = timed.last().map_or(input, |last: &TimedAction| last.end.max(input));
                let end = start + costs.of(action);
                match action {
                    Action::Forward { .. } => ends[0][at] = Some(end),
                    Action::WeightGrad { .. } => {}
                    _ => ends[1][at] = Some(end),
                }
                timed.push(TimedAction { action, start, end });
            }
        }
        let after: usize = timed.iter().map(Vec::len).sum();
        if after == before {
            break;
        }
    }
    match timed.iter().zip(&actions).position(|(timed, own)| timed.len() < own.len()) {
        Some(stage) => {
            Err(format!("{}: stage {stage} waits for a message that no stage sends", schedule.name()))
        }
        None => Ok(PipelineTimeline { stages: timed }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tested;
    use super::*;
    use PipelineSchedule::{GPipe, Interleaved, OneFOneB, ZbH1, ZbV};

    fn costs() -> impl Iterator<Item = ChunkCosts> {
        let each = |f: u64| (1..=4).flat_map(move |b| (1..=4).map(move |w| (f, b, w)));
        (1..=4).flat_map(each).map(|(forward, input_grad, weight_grad)| ChunkCosts {
            forward,
            input_grad,
            weight_grad,
        })
    }

    #[test]
    fn bubbles_are_as_published() {
        for (schedule, p, m) in tested(8, 24).filter(|(schedule, ..)| *schedule != ZbV) {
            for costs in costs().filter(|_| schedule != ZbH1 || m >= p) {
                let ChunkCosts { forward: f, input_grad: b, weight_grad: w } = costs;
                // A stage costs v times as much as a chunk, so the formula's v cancels.
                let published = match schedule {
                    GPipe | OneFOneB | Interleaved { .. } => f + b + w,
                    ZbH1 if w <= f.min(b) => f + b - w,
                    ZbH1 | ZbV => f.max(b),
                };
                let timeline = timeline(schedule, p, m, costs).unwrap();
                assert_eq!(timeline.bubble(), (p as u64 - 1) * published, "{schedule:?} {p} x {m} {costs:?}");
            }
        }
    }

    /// The largest idle time of a stage between the start of its first action and the end of its last, which is how zero-bubble schedules
    /// are published: a stage that has ended continues with the next step at once.
    fn bubble_within(timeline: &PipelineTimeline) -> u64 {
        let idle = |(stage, actions): (usize, &Vec<TimedAction>)| {
            let (first, last) = (actions.first()?, actions.last()?);
            Some(last.end - first.start - timeline.busy(stage))
        };
        timeline.stages.iter().enumerate().filter_map(idle).max().unwrap_or(0)
    }

    #[test]
    fn zb_v_has_no_bubble_at_equal_costs_and_enough_micro_batches() {
        let unit = ChunkCosts { forward: 1, input_grad: 1, weight_grad: 1 };
        for (_, p, m) in tested(8, 24).filter(|(schedule, ..)| *schedule == ZbV) {
            let timeline = timeline(ZbV, p, m, unit).unwrap();
            let (before_last, missing) = (p as u64 - 1, (2 * p - 1).saturating_sub(m) as u64);
            assert_eq!(bubble_within(&timeline), 2 * missing, "{p} x {m}");
            assert_eq!(timeline.bubble(), before_last.max(2 * missing), "{p} x {m}");
            assert_eq!(timeline.busy(0), 6 * m as u64);
        }
    }
}
