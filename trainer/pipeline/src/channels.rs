//! Which communicator carries which message.
//!
//! A stage executes the operations that it has posted on one communicator one at a time, in order. A receive posted after a send
//! waits until the peer receives that send. With too few communicators this costs time, or makes a cycle of waits: a deadlock.
//!
//! | schedule | communicators | fewer |
//! |---|---|---|
//! | `gpipe` | 2: to higher stages, to lower stages | 1 suffices |
//! | `1f1b`, `zb_h1` | the same 2 | 1 deadlocks |
//! | `interleaved` | the same 2 | 1 deadlocks; so do 2 of which one carries all forward messages |
//! | `zb_v` | 5 | 2 deadlock; with 3 or 4, some stage waits for another's messages |
//!
//! In `gpipe`, `1f1b` and `zb_h1` forward messages go to higher stages and backward messages to lower stages. On the ring
//! of `interleaved` the forward messages from the last stage to stage 0 go to a lower stage, too. If all forward messages
//! shared a communicator, every stage could wait until its send is taken before it receives: a cycle. Split by higher and
//! lower stage, the cycle is broken at stage 0. Forward and backward messages of `interleaved` therefore share communicators;
//! [`super::check()`] proves that sender and receiver agree on the order.
//!
//! In `zb_v` forward messages go down to the last stage and come back up, and backward messages use the same paths. Each of the
//! two paths has one communicator for each direction. The forward messages down have a second one, by the parity of the stage:
//! stage 0 starts with 2p-1 forward passes in a row, and with one communicator each stage would take the next activation only
//! after the stage below had taken the one before.
//!
//! Except for `gpipe`, these numbers are the smallest such that no stage waits longer than with one communicator for each
//! boundary. The tests in this file search all groupings of messages by direction, by way (to a higher or to a lower stage) and by
//! the parity of the lower stage, at equal costs and at costs where the forward pass takes longest.

use super::PipelineSchedule;

/// The communicators of the messages between a chunk and the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundaryChannels {
    /// Carries the activations, from the chunk before.
    pub forward: usize,
    /// Carries their gradients, to the chunk before.
    pub backward: usize,
}

/// By chunk, the communicators of the messages between that chunk and the one before it. Nothing for chunk 0, and nothing
/// where both chunks are on one stage. Communicators are numbered from 0 and each spans all stages.
pub fn channels(schedule: PipelineSchedule, stages: usize) -> Vec<Option<BoundaryChannels>> {
    let of = |chunk: usize| {
        let (from, to) = (schedule.stage_of(chunk.checked_sub(1)?, stages), schedule.stage_of(chunk, stages));
        (from != to).then_some(match (schedule, from < to) {
            (PipelineSchedule::ZbV, true) => BoundaryChannels { forward: from % 2, backward: 4 },
            (PipelineSchedule::ZbV, false) => BoundaryChannels { forward: 2, backward: 3 },
            (_, true) => BoundaryChannels { forward: 0, backward: 1 },
            (_, false) => BoundaryChannels { forward: 1, backward: 0 },
        })
    };
    (0..schedule.chunks(stages)).map(of).collect()
}

/// The number of communicators that the channels name.
pub(super) fn count(channels: &[Option<BoundaryChannels>]) -> usize {
    channels.iter().flatten().map(|channels| channels.forward.max(channels.backward) + 1).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::check::check_case;
    use super::super::execution::Case;
    use super::super::{ChunkCosts, timeline};
    use super::*;
    use PipelineSchedule::{GPipe, Interleaved, OneFOneB, ZbH1, ZbV};

    /// Cases (stages, micro-batches, cost of a forward pass) in which groupings differ: equal costs, and a longer forward pass.
    const CASES: [(usize, usize, u64); 6] =
        [(2, 2, 1), (2, 6, 1), (3, 6, 1), (4, 16, 1), (5, 20, 3), (8, 24, 3)];

    /// The number of a message's communicator, by its direction, its way and the parity of its lower stage.
    type Grouping = [usize; 8];

    fn grouped(schedule: PipelineSchedule, stages: usize, by: &Grouping) -> Vec<Option<BoundaryChannels>> {
        let of = |chunk: usize| {
            let (from, to) =
                (schedule.stage_of(chunk.checked_sub(1)?, stages), schedule.stage_of(chunk, stages));
            let at = 2 * usize::from(from > to) + from.min(to) % 2;
            (from != to).then(|| BoundaryChannels { forward: by[at], backward: by[4 + at] })
        };
        (0..schedule.chunks(stages)).map(of).collect()
    }

    /// Whether no case deadlocks; with `at_once`, also whether no stage ever waits for a communicator.
    fn works(
        schedule: PipelineSchedule,
        at_once: bool,
        channels: impl Fn(usize) -> Vec<Option<BoundaryChannels>>,
    ) -> bool {
        CASES.iter().all(|&(stages, micros, forward)| {
            let costs = ChunkCosts { forward, input_grad: 1, weight_grad: 1 };
            let actions = schedule.all_actions(stages, micros).unwrap();
            let case = Case { schedule, micros, actions: &actions, channels: &channels(stages), costs };
            let buffered = || timeline(schedule, stages, micros, costs).unwrap().bubble();
            check_case(case).is_ok_and(|proof| !at_once || proof.bubble == buffered())
        })
    }

    /// Every way to group the eight kinds of messages.
    fn groupings() -> Vec<Grouping> {
        let mut all = vec![[0; 8]];
        for at in 1..8 {
            let longer = |by: Grouping| {
                let new = by[..at].iter().max().unwrap() + 1;
                (0..=new).map(move |group| std::array::from_fn(|i| if i == at { group } else { by[i] }))
            };
            all = all.into_iter().flat_map(longer).collect();
        }
        all
    }

    /// The fewest communicators of all groupings that work.
    fn fewest(schedule: PipelineSchedule, at_once: bool) -> usize {
        let count = |by: &Grouping| by.iter().max().unwrap() + 1;
        let mut all = groupings();
        all.sort_by_key(count);
        let found = all.iter().find(|by| works(schedule, at_once, |stages| grouped(schedule, stages, by)));
        count(found.unwrap())
    }

    #[test]
    fn no_grouping_of_messages_needs_fewer_communicators() {
        assert_eq!(groupings().len(), 4140);
        for schedule in [OneFOneB, ZbH1, Interleaved { chunks: 2 }, Interleaved { chunks: 3 }, ZbV] {
            assert!(works(schedule, true, |stages| channels(schedule, stages)), "{schedule:?}");
            assert_eq!(fewest(schedule, true), count(&channels(schedule, 8)), "{schedule:?}");
        }
        assert_eq!(fewest(ZbV, false), 3);
        assert_eq!(fewest(GPipe, true), 1);
    }

    #[test]
    fn one_communicator_for_each_direction_deadlocks_on_a_ring_and_on_a_v() {
        for (schedule, free) in
            [(OneFOneB, true), (ZbH1, true), (Interleaved { chunks: 2 }, false), (ZbV, false)]
        {
            let by = [0, 0, 0, 0, 1, 1, 1, 1];
            assert_eq!(works(schedule, false, |stages| grouped(schedule, stages, &by)), free, "{schedule:?}");
        }
    }
}
