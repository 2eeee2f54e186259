//! What a schedule costs, counted from its steps.

use super::walk;
use crate::schedule::{Combine, Schedule};
use std::convert::Infallible;

/// Counts over all steps. Amounts of data are in buffers: 1.0 is the whole data of one rank, in equal chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Rounds in which anybody acts.
    pub rounds: u64,
    /// Messages between ranks.
    pub messages: u64,
    /// What the busiest sender sends to others.
    pub sent: f64,
    /// What the busiest receiver receives from others.
    pub received: f64,
    /// What the rank that reduces most reduces.
    pub reduced: f64,
    /// What the rank that copies most moves within itself.
    pub moved: f64,
}

impl Cost {
    /// Counts all steps of all ranks.
    pub fn of(schedule: &(impl Schedule + ?Sized)) -> Cost {
        let ranks = schedule.ranks() as usize;
        let [mut sent, mut received, mut reduced, mut moved] = std::array::from_fn(|_| vec![0u64; ranks]);
        let mut cost = Cost::default();
        let Ok(()) = walk::<Infallible>(schedule, |_, acting| {
            cost.rounds += 1;
            for (rank, step) in acting {
                if let Some((to, span)) = step.send
                    && to != *rank
                {
                    sent[rank.index()] += u64::from(span.len);
                    cost.messages += 1;
                }
                if let Some((from, span, how)) = step.recv {
                    let len = u64::from(span.len);
                    let local = from == *rank;
                    received[rank.index()] += if local { 0 } else { len };
                    reduced[rank.index()] += if how == Combine::Reduce { len } else { 0 };
                    moved[rank.index()] += if how == Combine::Copy && local { len } else { 0 };
                }
            }
            Ok(())
        });
        let whole = f64::from(schedule.chunks()) * f64::from(schedule.segments());
        let most = |counts: Vec<u64>| counts.into_iter().max().unwrap_or(0) as f64 / whole;
        Cost {
            sent: most(sent),
            received: most(received),
            reduced: most(reduced),
            moved: most(moved),
            ..cost
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{RingAllReduce, direct, halving_doubling};

    #[test]
    fn the_cost_lines_of_the_textbooks() {
        let ring = Cost::of(&RingAllReduce(8));
        assert_eq!((ring.rounds, ring.messages), (14, 8 * 14));
        assert_eq!((ring.sent, ring.received, ring.reduced), (1.75, 1.75, 0.875));
        let halving = Cost::of(&halving_doubling(8));
        assert_eq!((halving.rounds, halving.sent, halving.reduced), (6, 1.75, 0.875));
        let direct = Cost::of(&direct(6));
        assert_eq!((direct.sent, direct.reduced), (10.0 / 6.0, 5.0 / 6.0));
    }
}
