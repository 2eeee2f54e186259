//! The order of actions on one stage, for each published schedule.
//!
//! A digit is the forward pass of that micro-batch; a letter is the gradient of a chunk's input (a is that of micro-batch
//! 0), and a capital letter the gradients of its weights. Each takes the same time, and time goes to the right. In a whole
//! backward pass both letters belong to one action.
//!
//! ```text
//! gpipe        0123      aAbBcCdD
//! gpipe         0123   aAbBcCdD
//! gpipe          0123aAbBcCdD
//!
//! 1f1b         012    aA3bB cC dD
//! 1f1b          01  aA2bB3cC dD
//! 1f1b           0aA1bB2cC3dD
//!
//! zb_h1        012  aA3bBcCdD
//! zb_h1         01 a2bA3cBdCD
//! zb_h1          0a1b2cA3dBCD
//!
//! interleaved  01012 aA3bB2aA3bB cC dDcCdD
//! interleaved   010aA1bB2aA3bB2cC3dDcCdD
//!
//! zb_v         0120aA1bB3aA2cCbB3dDcCdD
//! zb_v          0011aA2aA2bB3bB3cCcddCDD
//! ```
//!
//! `interleaved` and `zb_v` are drawn with two chunks on each stage.

use super::Action::{self, Backward, Forward, InputGrad, WeightGrad};

/// All forward passes, then all backward passes.
pub(super) fn gpipe(chunk: usize, micros: usize) -> Vec<Action> {
    let forward = (0..micros).map(|micro| Forward { chunk, micro });
    forward.chain((0..micros).map(|micro| Backward { chunk, micro })).collect()
}

/// Forward passes until the first gradient can come back, then backward and forward passes alternate.
pub(super) fn one_f_one_b(stage: usize, stages: usize, micros: usize) -> Vec<Action> {
    let of = |micro| (stage, micro);
    alternate(stages - 1 - stage, micros, of, of)
}

/// 1F1B over passes of single chunks: `stages` micro-batches through a chunk, then the same through the stage's next chunk.
pub(super) fn interleaved(stage: usize, stages: usize, chunks: usize, micros: usize) -> Vec<Action> {
    if chunks == 1 {
        return one_f_one_b(stage, stages, micros);
    }
    let round = stages * chunks;
    let micro = |pass: usize| pass / round * stages + pass % stages;
    let forward = |pass: usize| (pass % round / stages * stages + stage, micro(pass));
    let backward = |pass: usize| ((chunks - 1 - pass % round / stages) * stages + stage, micro(pass));
    alternate(2 * (stages - 1 - stage) + (chunks - 1) * stages, micros * chunks, forward, backward)
}

/// `passes` forward and as many backward passes: first `ahead` forward passes, then a forward and a backward pass in turn.
fn alternate(
    ahead: usize,
    passes: usize,
    forward: impl Fn(usize) -> (usize, usize),
    backward: impl Fn(usize) -> (usize, usize),
) -> Vec<Action> {
    let mut actions = Vec::with_capacity(2 * passes);
    let forward = |pass| {
        let (chunk, micro) = forward(pass);
        Forward { chunk, micro }
    };
    actions.extend((0..ahead.min(passes)).map(forward));
    for pass in 0..passes {
        actions.extend((pass + ahead < passes).then(|| forward(pass + ahead)));
        let (chunk, micro) = backward(pass);
        actions.push(Backward { chunk, micro });
    }
    actions
}

/// 1F1B with postponed weight gradients: stage s computes them s micro-batches late, in what was its idle time.
pub(super) fn zb_h1(stage: usize, stages: usize, micros: usize) -> Vec<Action> {
    let mut actions = Vec::with_capacity(3 * micros);
    for action in one_f_one_b(stage, stages, micros) {
        let Backward { chunk, micro } = action else {
            actions.push(action);
            continue;
        };
        actions.push(InputGrad { chunk, micro });
        actions.extend(micro.checked_sub(stage).map(|micro| WeightGrad { chunk, micro }));
    }
    actions.extend((micros.saturating_sub(stage)..micros).map(|micro| WeightGrad { chunk: stage, micro }));
    actions
}

/// For each kind of pass over one chunk, the number of micro-batches that it has done.
#[derive(Clone, Copy)]
struct Passes {
    chunk: usize,
    forward: usize,
    input: usize,
    weight: usize,
}

impl Passes {
    fn forward(&mut self) -> Action {
        self.forward += 1;
        Forward { chunk: self.chunk, micro: self.forward - 1 }
    }

    fn input(&mut self) -> Action {
        self.input += 1;
        InputGrad { chunk: self.chunk, micro: self.input - 1 }
    }

    fn weight(&mut self) -> Action {
        self.weight += 1;
        WeightGrad { chunk: self.chunk, micro: self.weight - 1 }
    }
}

/// ZB-V: `down` is the stage's chunk on the way to the last stage, `up` the one on the way back.
///
/// Fewer than 2p-1 micro-batches are a schedule of 2p-1 of which the last are left out.
pub(super) fn zb_v(stage: usize, stages: usize, micros: usize) -> Vec<Action> {
    let all = micros.max(2 * stages - 1);
    let [mut down, mut up] =
        [stage, 2 * stages - 1 - stage].map(|chunk| Passes { chunk, forward: 0, input: 0, weight: 0 });
    let mut actions = Vec::with_capacity(6 * all);
    actions.extend((0..2 * (stages - stage) - 1).map(|_| down.forward()));
    actions.extend((0..stage).flat_map(|_| [up.forward(), down.forward()]));
    actions.extend((stage..stages).flat_map(|_| [up.forward(), up.input(), up.weight()]));
    while up.forward < all {
        actions.extend((down.forward < all).then(|| down.forward()));
        actions.extend([down.input(), down.weight(), up.forward(), up.input(), up.weight()]);
    }
    actions.extend((0..stage).flat_map(|_| [down.input(), up.input()]));
    actions.extend((stage..stages).flat_map(|_| [down.input(), down.weight()]));
    actions.extend((up.weight..all).map(|_| up.weight()));
    actions.extend((down.weight..all).map(|_| down.weight()));
    actions.retain(|action| action.micro() < micros);
    actions
}

#[cfg(test)]
mod tests {
    use super::super::{ChunkCosts, PipelineSchedule, timeline};
    use super::*;

    #[test]
    fn the_picture_of_this_file_is_what_the_schedules_do() {
        let two = PipelineSchedule::Interleaved { chunks: 2 };
        let drawn =
            [(PipelineSchedule::GPipe, 3), (PipelineSchedule::OneFOneB, 3), (PipelineSchedule::ZbH1, 3)];
        for (schedule, stages) in drawn.into_iter().chain([(two, 2), (PipelineSchedule::ZbV, 2)]) {
            let unit = ChunkCosts { forward: 1, input_grad: 1, weight_grad: 1 };
            for stage in timeline(schedule, stages, 4, unit).unwrap().stages {
                let mut line = String::new();
                for timed in stage {
                    line.extend((line.len() as u64..timed.start).map(|_| ' '));
                    let at = timed.action.micro();
                    line.push_str(match timed.action {
                        Forward { .. } => &"0123"[at..=at],
                        Backward { .. } => &"aAbBcCdD"[2 * at..2 * at + 2],
                        InputGrad { .. } => &"abcd"[at..=at],
                        WeightGrad { .. } => &"ABCD"[at..=at],
                    });
                }
                let line = format!("//! {:<12} {line}\n", schedule.name());
                assert!(include_str!("orders.rs").contains(&line), "{line}");
            }
        }
    }
}
