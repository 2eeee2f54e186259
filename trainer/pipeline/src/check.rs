//! Proof that a schedule is complete, that its messages match, and that it cannot deadlock without buffers.

use super::channels::count;
use super::execution::{Case, Execution};
use super::{Action, ChunkCosts, PipelineSchedule, channels};

/// The figures that [`check`] finds while it proves a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineProof {
    /// For each stage, the largest number of (chunk, micro-batch) pairs whose activations are kept at one time: from the
    /// forward pass until the weight gradients are computed.
    pub peak: Vec<usize>,
    /// The makespan less the time that the busiest stage computes, without buffers, where the forward pass, the gradient of
    /// the input and the gradients of the weights each take 1 per chunk.
    pub bubble: u64,
    /// The number of communicators that the messages need.
    pub channels: usize,
}

/// Proves that a schedule is complete, that its messages match, and that it cannot deadlock without buffers.
///
/// Every stage runs the forward and the backward pass of every micro-batch through each of its chunks, once, and no others.
/// The gradients of a chunk's weights follow the gradient of its input and are finished in the order of the micro-batches.
/// Execution, as `execution.rs` states the rule, gets to the end with the communicators of [`channels()`].
///
/// # Errors
/// As [`PipelineSchedule::actions`]; otherwise the first stage that does something else, or that is stuck.
pub fn check(schedule: PipelineSchedule, stages: usize, micros: usize) -> Result<PipelineProof, String> {
    let actions = schedule.all_actions(stages, micros)?;
    let channels = channels(schedule, stages);
    let costs = ChunkCosts { forward: 1, input_grad: 1, weight_grad: 1 };
    check_case(Case { schedule, micros, actions: &actions, channels: &channels, costs })
}

/// [`check`] of given actions, communicators and costs.
pub(super) fn check_case(case: Case<'_>) -> Result<PipelineProof, String> {
    let stages = case.actions.len();
    let peak = case.actions.iter().enumerate().map(|(stage, actions)| {
        let own =
            (0..case.channels.len()).map(|chunk| case.schedule.stage_of(chunk, stages) == stage).collect();
        Passes::new(own, case.micros).run(actions).map_err(|why| format!("stage {stage}: {why}"))
    });
    let peak = peak.collect::<Result<_, String>>()?;
    let busy = |actions: &Vec<Action>| actions.iter().map(|&action| case.costs.of(action)).sum();
    let busiest: u64 = case.actions.iter().map(busy).max().unwrap_or(0);
    Ok(PipelineProof { peak, bubble: Execution::new(case).run()? - busiest, channels: count(case.channels) })
}

/// Which passes of a micro-batch a chunk has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    Nothing,
    Forward,
    InputGrad,
    All,
}

/// The passes over the chunks of one stage.
struct Passes {
    /// For each chunk, whether the stage holds it.
    own: Vec<bool>,
    micros: usize,
    /// For each chunk and micro-batch, the passes that are done.
    passed: Vec<Passed>,
    /// For each chunk, the number of micro-batches whose weight gradients are computed.
    finished: Vec<usize>,
}

impl Passes {
    fn new(own: Vec<bool>, micros: usize) -> Passes {
        let chunks = own.len();
        Passes { own, micros, passed: vec![Passed::Nothing; chunks * micros], finished: vec![0; chunks] }
    }

    /// The largest number of activations held at one time, if the actions are complete and in a possible order.
    fn run(mut self, actions: &[Action]) -> Result<usize, String> {
        let (mut alive, mut peak) = (0, 0);
        for &action in actions {
            match self.pass(action)? {
                Passed::Forward => alive += 1,
                Passed::All => alive -= 1,
                _ => {}
            }
            peak = peak.max(alive);
        }
        match (0..self.own.len()).find(|&chunk| self.own[chunk] && self.finished[chunk] < self.micros) {
            Some(chunk) => Err(format!(
                "micro-batch {} never finishes its backward pass of chunk {chunk}",
                self.finished[chunk]
            )),
            None => Ok(peak),
        }
    }

    /// Advances the action's micro-batch; returns the new state.
    fn pass(&mut self, action: Action) -> Result<Passed, String> {
        let (chunk, micro) = (action.chunk(), action.micro());
        if !self.own.get(chunk).is_some_and(|own| *own) || micro >= self.micros {
            return Err(format!("{action:?} is of a chunk of another stage, or of no micro-batch"));
        }
        let (from, to) = match action {
            Action::Forward { .. } => (Passed::Nothing, Passed::Forward),
            Action::Backward { .. } => (Passed::Forward, Passed::All),
            Action::InputGrad { .. } => (Passed::Forward, Passed::InputGrad),
            Action::WeightGrad { .. } => (Passed::InputGrad, Passed::All),
        };
        let passed = &mut self.passed[chunk * self.micros + micro];
        if *passed != from {
            return Err(format!("{action:?} comes after {passed:?}, but must come after {from:?}"));
        }
        *passed = to;
        if to == Passed::All {
            if self.finished[chunk] != micro {
                let next = self.finished[chunk];
                return Err(format!("{action:?}: micro-batch {next} must finish its weight gradients first"));
            }
            self.finished[chunk] += 1;
        }
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, TESTED, tested};
    use super::*;
    use PipelineSchedule::{GPipe, Interleaved, OneFOneB, ZbH1, ZbV};

    const UNIT: ChunkCosts = ChunkCosts { forward: 1, input_grad: 1, weight_grad: 1 };

    /// The published peak, or the one that follows from the number of passes before the first backward pass.
    fn published_peak(schedule: PipelineSchedule, stage: usize, p: usize, m: usize) -> usize {
        match schedule {
            GPipe => m,
            OneFOneB | Interleaved { chunks: 1 } => m.min(p - stage),
            Interleaved { chunks: v } => (m * v).min(2 * (p - 1 - stage) + (v - 1) * p + 1),
            ZbH1 => m.min(p),
            ZbV => (2 * m).min(2 * p),
        }
    }

    fn proved(schedule: PipelineSchedule, p: usize, m: usize) {
        let proof = check(schedule, p, m).unwrap_or_else(|why| panic!("{schedule:?} {p} x {m}: {why}"));
        let peak: Vec<usize> = (0..p).map(|stage| published_peak(schedule, stage, p, m)).collect();
        let full = schedule != ZbV || m >= 2 * p - 1;
        let lower = !full && proof.peak.iter().zip(&peak).all(|(proved, published)| proved <= published);
        assert!(lower || proof.peak == peak, "{schedule:?} {p} x {m}: {:?}, but {peak:?}", proof.peak);
        let buffered = super::super::timeline(schedule, p, m, UNIT).unwrap().bubble();
        assert_eq!(proof.bubble, buffered, "{schedule:?} {p} x {m}: stages wait for communicators");
    }

    #[test]
    fn every_schedule_is_proved_with_its_published_peaks() {
        let mut cases = 0;
        for (schedule, p, m) in tested(8, 24) {
            proved(schedule, p, m);
            cases += 1;
        }
        assert_eq!(cases, 4 * 192 + 4 * 64);
    }

    #[test]
    fn every_schedule_is_proved_at_64_stages_and_256_micro_batches() {
        TESTED.into_iter().for_each(|schedule| proved(schedule, 64, 256));
    }

    /// The checker's refusal of a schedule with changed actions.
    fn said(schedule: PipelineSchedule, p: usize, change: impl Fn(&mut [Vec<Action>])) -> String {
        let mut actions = schedule.all_actions(p, 4).unwrap();
        change(&mut actions);
        let case =
            Case { schedule, micros: 4, actions: &actions, channels: &channels(schedule, p), costs: UNIT };
        check_case(case).unwrap_err()
    }

    #[test]
    fn mistakes_are_refused() {
        let refused = |schedule, change: &dyn Fn(&mut [Vec<Action>]), why: &str| {
            let said = said(schedule, 2, change);
            assert!(said.contains(why), "{said}");
        };
        let dropped = Action::Backward { chunk: 1, micro: 2 };
        refused(GPipe, &|all| all[0].swap(3, 4), "stage 0 is stuck before Backward { chunk: 0, micro: 0 }");
        refused(GPipe, &|all| all[1].swap(0, 1), "but stage 1 receives the activation from chunk 0");
        refused(GPipe, &|all| all[0].swap(4, 5), "micro-batch 0 must finish its weight gradients first");
        refused(
            GPipe,
            &|all| all[1].retain(|&action| action != dropped),
            "micro-batch 2 must finish its weight gradients first",
        );
        refused(
            ZbH1,
            &|all| all[1].truncate(11),
            "micro-batch 3 never finishes its backward pass of chunk 1",
        );
        refused(
            OneFOneB,
            &|all| all[1].insert(1, all[1][0]),
            "comes after Forward, but must come after Nothing",
        );
        refused(OneFOneB, &|all| all.swap(0, 1), "is of a chunk of another stage");
        refused(ZbH1, &|all| all[0].swap(2, 3), "comes after Forward, but must come after InputGrad");
        let local = said(ZbV, 1, |all| all[0].swap(0, 1));
        assert!(local.contains("what it reads is computed later on the same stage"), "{local}");
    }

    #[test]
    fn a_whole_backward_pass_and_split_ones_do_not_mix() {
        let whole = |all: &mut [Vec<Action>]| {
            let split = all[0].iter().position(|action| matches!(action, Action::InputGrad { .. })).unwrap();
            all[0][split] = Action::Backward { chunk: 0, micro: 0 };
        };
        assert!(said(ZbH1, 2, whole).contains("comes after All, but must come after InputGrad"));
    }
}
