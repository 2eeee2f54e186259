//! The cost of a schedule, counted from its steps.

use super::walk;
use crate::schedule::{Combine, Schedule};
use std::convert::Infallible;

/// Costs counted over all steps. Amounts of data are in units of a buffer: 1.0 is the whole data of one rank, in equal chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// The number of rounds in which any rank acts.
    pub rounds: u64,
    /// The number of messages between ranks.
    pub messages: u64,
    /// The largest amount that any rank sends to other ranks.
    pub sent: f64,
    /// The largest amount that any rank receives from other ranks.
    pub received: f64,
    /// The largest amount that any rank reduces.
    pub reduced: f64,
    /// The largest amount that any rank copies locally.
    pub moved: f64,
}

impl Cost {
    /// The cost of a schedule, counted over all steps of all ranks.
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
                    sent[rank.index()] += u64::from(span.chunks);
                    cost.messages += 1;
                }
                if let Some((from, span, how)) = step.recv {
                    let len = u64::from(span.chunks);
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
    use crate::Collective::{self, *};
    use crate::registry::{Shape, find};

    fn cost(collective: Collective, name: &str, ranks: u32) -> Cost {
        Cost::of(&find(collective, name).unwrap().build(Shape::new(ranks).unwrap()).unwrap())
    }

    /// Compares the counted costs with the cost lines in the algorithms' files.
    #[test]
    fn costs_are_those_of_the_textbooks() {
        let ring = cost(AllReduce, "ring", 8);
        assert_eq!((ring.rounds, ring.messages), (14, 8 * 14));
        assert_eq!((ring.sent, ring.received, ring.reduced), (1.75, 1.75, 0.875));
        let halving = cost(AllReduce, "halving_doubling", 8);
        assert_eq!((halving.rounds, halving.sent, halving.reduced), (6, 1.75, 0.875));
        assert_eq!(
            (
                cost(AllReduce, "halving_doubling", 12).rounds,
                cost(ReduceScatter, "halving_doubling", 12).rounds
            ),
            (8, 5)
        );
        let doubling = cost(AllReduce, "recursive_doubling", 16);
        assert_eq!((doubling.rounds, doubling.sent, doubling.reduced), (4, 4.0, 4.0));
        for ranks in [5, 6, 17] {
            let n = f64::from(ranks);
            let direct = cost(AllReduce, "direct", ranks);
            assert!((direct.sent - 2.0 * (n - 1.0) / n).abs() < 1e-12 && direct.reduced < 1.0);
            assert_eq!(direct.rounds, 3 * (u64::from(ranks) - 1));
        }
        let ceil_log = |ranks: u32| u64::from(u32::BITS - (ranks - 1).leading_zeros());
        for ranks in [2, 3, 6, 8, 13, 33] {
            assert_eq!(cost(Reduce, "binomial", ranks).rounds, ceil_log(ranks));
            assert_eq!(cost(Barrier, "dissemination", ranks).rounds, ceil_log(ranks));
            assert_eq!(cost(AllGather, "bruck", ranks).messages, u64::from(ranks) * ceil_log(ranks));
            assert_eq!(cost(AllToAll, "bruck", ranks).messages, u64::from(ranks) * ceil_log(ranks));
            assert!(cost(Reduce, "binary_tree", ranks).rounds <= 2 * ceil_log(ranks));
            assert_eq!(cost(Reduce, "chain", ranks).rounds, u64::from(ranks) - 1);
            let trees = cost(AllReduce, "double_binary_tree", ranks);
            assert!(trees.sent <= 2.0 && trees.received <= 2.0, "{trees:?}");
        }
        let hierarchy = cost(AllReduce, "hierarchical", 64);
        assert_eq!((hierarchy.rounds, hierarchy.sent), (12, 2.0 * 63.0 / 64.0));
        let star = cost(Reduce, "star", 5);
        assert_eq!((star.sent, star.received, star.reduced), (1.0, 4.0, 4.0));
    }
}
