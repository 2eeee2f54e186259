//! Finds the culprit of an exceeded deadline: starts at the late rank and follows the ranks that each rank waits for, to a rank that
//! waits for none.

use super::state::State;
use super::tasks::{Doing, Entered, Task, Wait};
use crate::Rank;
use crate::backends::TaskId;
use std::collections::BTreeSet;

impl State {
    /// The culprit behind a late rank: the waiting rank, the ranks that it waits for, and the round.
    pub fn blame(&mut self, late: TaskId) -> (Rank, Vec<Rank>, u64) {
        let mut at = late;
        let mut seen = BTreeSet::new();
        loop {
            let half = self.tasks.half(at);
            let of = self.tasks.at(at);
            let (doing, rank) =
                (of.doing, of.entered.as_ref().map_or(of.rank, |entered| entered.member.rank));
            let Doing::Blocked(Wait::Posts { group, round }) = doing else { return (rank, vec![rank], 0) };
            if let Some((from, to, sent)) = self.channels.stuck(half) {
                return (to, vec![from], sent);
            }
            let peers: Vec<Rank> = self.channels.peers(half).into_iter().collect();
            let waits = |state: &State, peer: Rank| {
                let in_it = |of: &Task| {
                    let here =
                        |entered: &Entered| entered.member.group == group && entered.member.rank == peer;
                    of.entered.as_ref().is_some_and(here)
                        && matches!(of.doing, Doing::Blocked(Wait::Posts { .. }))
                };
                state.tasks.filter(in_it).first().copied()
            };
            seen.insert(at);
            // A rank that is no longer in the operation waits for none. If all peers wait, the search continues with the first peer that
            // it has not visited.
            let next = peers.iter().map(|peer| waits(self, *peer)).collect::<Option<Vec<_>>>();
            match next.and_then(|next| next.into_iter().find(|task| !seen.contains(task))) {
                Some(next) if !peers.is_empty() => at = next,
                _ => {
                    let busy = |peer: &Rank| waits(self, *peer).is_none();
                    let blamed: Vec<Rank> = peers.iter().copied().filter(busy).collect();
                    return (rank, if blamed.is_empty() { peers } else { blamed }, round);
                }
            }
        }
    }
}
