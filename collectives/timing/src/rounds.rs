//! A sweep over the rounds of a schedule that visits only the ranks that may act.
//!
//! ```text
//! dense     a rank that acted in round k is a candidate for k + 1, without a queue and without calling `next`
//! sparse    a candidate without a step in a round calls `next`, and waits in a heap until its next round
//! ```

use super::{Job, Representatives};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The ranks that may act in the current round, and the ranks that act later.
pub(crate) struct Rounds {
    /// The candidates of the current round, in order; after the idle ones have been removed, the ranks that act.
    pub acting: Vec<u32>,
    /// The candidates that turned out to have no step in this round.
    pub idle: Vec<u32>,
    later: BinaryHeap<Reverse<(u64, u32)>>,
    /// The round after the last one swept (`round`), and one past the schedule's last round (`end`).
    round: u64,
    end: u64,
}

impl Rounds {
    pub fn new(job: &Job<'_>, cast: &impl Representatives) -> Rounds {
        let (acting, end) = ((0..cast.representatives()).collect(), job.schedule.rounds());
        Rounds { acting, idle: Vec::new(), later: BinaryHeap::new(), round: 0, end }
    }

    /// The next round in which any rank may act; `acting` then lists the candidates.
    pub fn advance(&mut self) -> Option<u64> {
        if self.round >= self.end {
            self.acting.clear();
        }
        if self.acting.is_empty() {
            self.round = self.later.peek()?.0.0;
        }
        let before = self.acting.len();
        while let Some(&Reverse((round, representative))) = self.later.peek()
            && round == self.round
        {
            self.later.pop();
            self.acting.push(representative);
        }
        if before > 0 && self.acting.len() > before {
            self.acting.sort_unstable();
        }
        Some(self.round)
    }

    /// Advances to the next round. A rank that had no step in the round before waits for the next round in which it has one.
    pub fn done(&mut self, job: &Job<'_>, cast: &impl Representatives) {
        self.round += 1;
        for representative in self.idle.drain(..) {
            let next = job.schedule.next(cast.rank(representative), self.round.min(self.end));
            self.later.extend(next.map(|round| Reverse((round, representative))));
        }
    }
}
