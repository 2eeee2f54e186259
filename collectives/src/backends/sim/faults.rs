//! What fault rules do to ranks that carry data: the same as in `allfold_timing`, and the contract's errors.
//!
//! ```text
//! a rank dies          its messages under way are torn            its groups fail at once, and name it
//! a message is damaged its checksum does not match                its receiver fails the operation
//! ```

use super::agenda::Due;
use super::message::Half;
use super::state::{Doing, State, Wait};
use crate::backends::{ActorId, GroupId};
use crate::error::Lost;
use crate::{Call, Error, Operation, Rank};
use allfold_sim::Picos;
use allfold_sim::fault::{Death, Paced};

impl State {
    /// Whether a rank is to die before this step of its own, and makes it so.
    pub fn dies_before(&mut self, actor: ActorId, round: u64) -> bool {
        let of = self.at(actor);
        let rank = of.rank;
        let Some(call) = of.entered.as_ref().map(|entered| entered.call.clone()) else { return false };
        let Some(Death::In { operation, round: last }) = self.options.faults.death(rank) else {
            return false;
        };
        let now = call.operation != Operation::PointToPoint && call.sequence == operation && round >= last;
        if now {
            self.request(actor, Due::Die { rank });
        }
        now
    }

    /// A rank dies. Whoever is in an operation with it is told at once, whoever enters one later then.
    pub fn die(&mut self, rank: Rank) {
        if self.wires.transit.is_dead(rank) {
            return;
        }
        self.wires.die(rank, self.now);
        let cause = Lost::Disconnected(format!("died at {}", Picos(self.now)));
        let actors = self.those(|of| of.rank == rank);
        let seats: Vec<_> = (0..self.groups.len())
            .filter_map(|group| {
                let local = self.groups[group].members.iter().position(|member| *member == rank)?;
                Some((GroupId(group as u32), Rank(local as u32)))
            })
            .collect();
        for (group, local) in seats {
            let within = actors.iter().find_map(|actor| {
                let entered = self.at(*actor).entered.as_ref()?;
                (entered.member.group == group).then(|| entered.call.clone())
            });
            if self.ledger(group).die(local, cause.clone(), within.as_deref()) {
                self.alarm(group);
            }
            let letters = self.wires.letters(group, local);
            letters.into_iter().for_each(|channel| self.fail_orphaned(channel));
        }
        for actor in actors {
            if matches!(self.at(actor).doing, Doing::Blocked(Wait::Posts { .. })) {
                self.wake(actor);
            }
        }
    }

    /// How long an actor's own work takes from its time on.
    pub fn takes(&mut self, actor: ActorId, span: Picos) -> Picos {
        let (rank, now) = (self.at(actor).rank, self.at(actor).now);
        self.options.faults.takes(rank, Picos(now), span)
    }

    /// How long a launch or a computation takes, jitter included.
    pub fn takes_about(&mut self, actor: ActorId, what: Paced, nth: u64, span: Picos) -> Picos {
        let (rank, now) = (self.at(actor).rank, self.at(actor).now);
        let more = self.options.faults.jitter(rank, what, nth, Picos(now));
        self.takes(actor, span + more)
    }

    /// A message's checksum does not match its bytes: its receiver fails the operation.
    pub fn damaged(&mut self, receiver: Half, peer: Rank, round: u64, call: &Call, sums: (u32, u32)) {
        let of = self.at(receiver.actor);
        if of.operation != receiver.operation {
            return;
        }
        let Some(member) = of.entered.as_ref().map(|entered| entered.member) else { return };
        let what = format!("its checksum is {:08x}, and that of its bytes {:08x}", sums.0, sums.1);
        let (rank, call) = (member.rank, Box::new(call.clone()));
        self.ledger(member.group).fail(rank, Error::Protocol { rank, peer, call, round, what });
        self.alarm(member.group);
    }
}
