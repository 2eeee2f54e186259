//! The proof of a schedule: every pass once, on its stage, in an order that its inputs allow, and no stage ever stuck.

use super::{Action, StageMessage, StageSchedule};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What holds of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleProof {
    /// For each stage: the most activations of a (chunk, micro-batch) that it holds at a time, from its forward pass to its last
    /// gradient.
    pub in_flight: Vec<usize>,
}

/// Proves a schedule.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(schedule: StageSchedule, stages: usize, micros: usize) -> Result<ScheduleProof, String> {
    let all =
        (0..stages).map(|stage| schedule.actions(stage, stages, micros)).collect::<Result<Vec<_>, _>>()?;
    check_actions(schedule, micros, &all)
}

/// Proves the actions of all stages.
///
/// # Errors
/// The first thing that is wrong.
pub fn check_actions(
    schedule: StageSchedule,
    micros: usize,
    all: &[Vec<Action>],
) -> Result<ScheduleProof, String> {
    let in_flight = (0..)
        .zip(all)
        .map(|(stage, actions)| own(schedule, (stage, all.len()), micros, actions))
        .collect::<Result<_, _>>()?;
    run(schedule, all)?;
    Ok(ScheduleProof { in_flight })
}

/// What holds of one stage alone; how many activations it holds at most.
fn own(
    schedule: StageSchedule,
    (stage, stages): (usize, usize),
    micros: usize,
    actions: &[Action],
) -> Result<usize, String> {
    let (mut forward, mut back, mut whole) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut last_weight: BTreeMap<usize, usize> = BTreeMap::new();
    let mut most = 0;
    for &action in actions {
        let (chunk, micro) = action.place();
        let wrong = |what: &str| Err(format!("stage {stage}: {action:?} {what}"));
        if chunk % stages != stage || chunk >= schedule.chunks(stages) || micro >= micros {
            return wrong("is not of this stage");
        }
        let place = (chunk, micro);
        let fresh = match action {
            Action::Forward { .. } => forward.insert(place),
            _ if !forward.contains(&place) => return wrong("comes before its forward pass"),
            Action::InputGrad { .. } => back.insert(place),
            Action::Backward { .. } => back.insert(place) && whole.insert(place),
            Action::WeightGrad { .. } if !back.contains(&place) => {
                return wrong("comes before its input gradient");
            }
            Action::WeightGrad { .. } => whole.insert(place),
        };
        if !fresh {
            return wrong("comes twice");
        }
        if matches!(action, Action::Backward { .. } | Action::WeightGrad { .. })
            && last_weight.insert(chunk, micro).is_some_and(|before| before > micro)
        {
            return wrong("comes after the weight gradient of a later micro-batch");
        }
        most = most.max(forward.len() - whole.len());
    }
    let passes = micros * schedule.chunks(stages) / stages;
    match [forward.len(), back.len(), whole.len()] == [passes; 3] {
        true => Ok(most),
        false => Err(format!("stage {stage} has {} of {passes} backward passes", whole.len())),
    }
}

/// A message that a stage has posted to a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Post {
    Send(StageMessage),
    Receive(StageMessage),
}

/// Runs all stages without buffering: a stage waits for what it receives before an action, and posts what it sends after it; a
/// channel carries out a stage's posts one at a time, in their order, and a send ends only when its receive is under way.
fn run(schedule: StageSchedule, all: &[Vec<Action>]) -> Result<(), String> {
    let (stages, chunks) = (all.len(), schedule.chunks(all.len()));
    let mut queues: Vec<Vec<VecDeque<Post>>> = vec![vec![VecDeque::new(); schedule.channels(stages)]; stages];
    let mut at = vec![0; stages];
    let mut posted = vec![false; stages];
    let queue = |message: StageMessage| schedule.channel(message, stages);
    loop {
        let mut moved = false;
        for stage in 0..stages {
            while let Some(&action) = all[stage].get(at[stage]) {
                let [receive, send] = action.messages(chunks, stages);
                if let Some(message) = receive {
                    let waiting = &mut queues[stage][queue(message)];
                    if !posted[stage] {
                        waiting.push_back(Post::Receive(message));
                        posted[stage] = true;
                        moved = true;
                    }
                    if waiting.contains(&Post::Receive(message)) {
                        break;
                    }
                }
                if let Some(message) = send {
                    queues[stage][queue(message)].push_back(Post::Send(message));
                }
                (at[stage], posted[stage], moved) = (at[stage] + 1, false, true);
            }
        }
        moved |= deliver(&mut queues);
        if !moved {
            break;
        }
    }
    if let Some(stage) = (0..stages).find(|&stage| at[stage] < all[stage].len()) {
        return Err(format!("stage {stage} is stuck before {:?}", all[stage][at[stage]]));
    }
    match queues.iter().flatten().all(VecDeque::is_empty) {
        true => Ok(()),
        false => Err("a message is never received".into()),
    }
}

/// Carries every message whose send and receive are both next on their channel; whether there was one.
fn deliver(queues: &mut [Vec<VecDeque<Post>>]) -> bool {
    let (mut moved, stages) = (false, queues.len());
    for sender in 0..stages {
        for channel in 0..queues[sender].len() {
            while let Some(&Post::Send(message)) = queues[sender][channel].front() {
                let to = if message.backward { message.chunk - 1 } else { message.chunk } % stages;
                if queues[to][channel].front() != Some(&Post::Receive(message)) {
                    break;
                }
                queues[to][channel].pop_front();
                queues[sender][channel].pop_front();
                moved = true;
            }
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<StageSchedule> {
        let interleaved = (1..=4).map(|chunks| StageSchedule::Interleaved { chunks });
        [StageSchedule::GPipe, StageSchedule::OneFOneB, StageSchedule::ZbH1]
            .into_iter()
            .chain(interleaved)
            .collect()
    }

    #[test]
    fn every_schedule_is_proved_and_holds_as_many_micro_batches_as_published() {
        for schedule in all() {
            for stages in 1..=8 {
                for micros in 1..=24 {
                    if schedule.fits(stages, micros).is_err() {
                        continue;
                    }
                    let proof = check(schedule, stages, micros)
                        .unwrap_or_else(|what| panic!("{schedule:?} {stages} {micros}: {what}"));
                    for (stage, held) in proof.in_flight.into_iter().enumerate() {
                        let warmup = |laps: usize| 2 * (stages - 1 - stage) + (laps - 1) * stages + 1;
                        let published = match schedule {
                            StageSchedule::GPipe => micros,
                            StageSchedule::OneFOneB | StageSchedule::Interleaved { chunks: 1 } => {
                                micros.min(stages - stage)
                            }
                            StageSchedule::Interleaved { chunks } => (micros * chunks).min(warmup(chunks)),
                            StageSchedule::ZbH1 => micros.min(stages),
                        };
                        assert_eq!(
                            held, published,
                            "{schedule:?}, {stages} stages, {micros} micro-batches, stage {stage}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_largest_pipelines_are_proved() {
        for schedule in all() {
            check(schedule, 64, 256).unwrap();
        }
    }

    #[test]
    fn seeded_mistakes_are_found() {
        let actions = |schedule: StageSchedule| -> Vec<Vec<Action>> {
            (0..4).map(|stage| schedule.actions(stage, 4, 8).unwrap()).collect()
        };
        let refused = |schedule, all: &[Vec<Action>], says: &str| {
            let what = check_actions(schedule, 8, all).unwrap_err();
            assert!(what.contains(says), "{what}");
        };
        let mut lost = actions(StageSchedule::OneFOneB);
        lost[2].pop();
        refused(StageSchedule::OneFOneB, &lost, "stage 2 has 7 of 8 backward passes");
        let mut twice = actions(StageSchedule::OneFOneB);
        let again = twice[1][3];
        twice[1].push(again);
        refused(StageSchedule::OneFOneB, &twice, "comes twice");
        // The last stage takes its backward pass before the others' forward passes reach it.
        let mut swapped = actions(StageSchedule::OneFOneB);
        swapped[3].swap(0, 1);
        refused(StageSchedule::OneFOneB, &swapped, "before its forward pass");
        // The first stage waits for a gradient that needs a micro-batch it has not sent.
        let mut stuck = actions(StageSchedule::OneFOneB);
        stuck[0] = (0..8)
            .flat_map(|micro| [Action::Forward { chunk: 0, micro }, Action::Backward { chunk: 0, micro }])
            .collect();
        refused(StageSchedule::OneFOneB, &stuck, "is stuck before");
        let mut early = actions(StageSchedule::ZbH1);
        let at = early[1].iter().position(|action| matches!(action, Action::WeightGrad { .. })).unwrap();
        let weight = early[1].remove(at);
        let input = early[1].iter().position(|action| matches!(action, Action::InputGrad { .. })).unwrap();
        early[1].insert(input, weight);
        refused(StageSchedule::ZbH1, &early, "comes before its input gradient");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let refused = |schedule: StageSchedule, stages, micros| schedule.fits(stages, micros).unwrap_err();
        assert!(refused(StageSchedule::Interleaved { chunks: 2 }, 4, 6).contains("use a multiple of 4"));
        assert!(refused(StageSchedule::GPipe, 0, 6).contains("1 or more"));
        assert!(refused(StageSchedule::Interleaved { chunks: 0 }, 2, 6).contains("0 chunks"));
    }
}
