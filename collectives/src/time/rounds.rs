//! A sweep over the rounds of a schedule that touches only who acts.
//!
//! ```text
//! dense     round k: everybody   ->  `soon` is the next round: no queue is touched
//! sparse    round k: 3 ranks     ->  whoever acts later than in k + 1 waits in a heap
//! ```

use super::{Cast, Job};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Which actors act in the round at hand, in order, and which are due later.
pub(crate) struct Rounds {
    /// Who acts in the round at hand, in order.
    pub acting: Vec<u32>,
    soon: Vec<u32>,
    later: BinaryHeap<Reverse<(u64, u32)>>,
    /// The round after the last one swept.
    round: u64,
}

impl Rounds {
    pub fn new(job: &Job<'_>, cast: &impl Cast) -> Rounds {
        let mut rounds = Rounds { acting: Vec::new(), soon: Vec::new(), later: BinaryHeap::new(), round: 0 };
        for actor in 0..cast.actors() {
            rounds.due(actor, job.schedule.next(cast.rank(actor), 0));
        }
        rounds
    }

    fn due(&mut self, actor: u32, round: Option<u64>) {
        match round {
            Some(round) if round == self.round => self.soon.push(actor),
            Some(round) => self.later.push(Reverse((round, actor))),
            None => {}
        }
    }

    /// The next round in which anyone acts; `acting` then lists who.
    pub fn advance(&mut self) -> Option<u64> {
        std::mem::swap(&mut self.acting, &mut self.soon);
        self.soon.clear();
        if self.acting.is_empty() {
            self.round = self.later.peek()?.0.0;
        }
        let before = self.acting.len();
        while let Some(&Reverse((round, actor))) = self.later.peek()
            && round == self.round
        {
            self.later.pop();
            self.acting.push(actor);
        }
        if before > 0 && self.acting.len() > before {
            self.acting.sort_unstable();
        }
        Some(self.round)
    }

    /// Asks everyone who acted for their next round.
    pub fn plan(&mut self, round: u64, job: &Job<'_>, cast: &impl Cast) {
        self.round = round + 1;
        for at in 0..self.acting.len() {
            let actor = self.acting[at];
            self.due(actor, job.schedule.next(cast.rank(actor), self.round));
        }
    }
}
