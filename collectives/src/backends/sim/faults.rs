//! The effects of fault rules on ranks that carry data: the same as in `allfold_timing`, and the contract's errors.
//!
//! ```text
//! a rank dies          its messages in flight are cut off         its groups fail at once; the error names the rank
//! a message is damaged its checksum does not match                its receiver fails the operation
//! ```

use super::event_queue::ScheduledEvent;
use super::message::Half;
use super::state::State;
use super::tasks::{Doing, Wait};
use crate::backends::{GroupId, TaskId};
use crate::error::Lost;
use crate::{Call, Error, Operation, Rank};
use allfold_sim::Picos;
use allfold_sim::fault::{Death, Paced};

impl State {
    /// Kills a rank before this step if a fault rule requires it. Returns whether it did.
    pub fn dies_before(&mut self, task: TaskId, round: u64) -> bool {
        let of = self.tasks.at(task);
        let rank = of.rank;
        let Some(call) = of.entered.as_ref().map(|entered| entered.call.clone()) else { return false };
        let Some(Death::In { operation, round: last }) = self.options.faults.death(rank) else {
            return false;
        };
        let now = call.operation != Operation::PointToPoint && call.sequence == operation && round >= last;
        if now {
            self.request(task, ScheduledEvent::Die { rank });
        }
        now
    }

    /// Kills a rank. Ranks in an operation with it get the error immediately, other ranks when they enter an operation.
    pub fn die(&mut self, rank: Rank) {
        if self.channels.transit.is_dead(rank) {
            return;
        }
        self.channels.die(rank, self.now);
        let cause = Lost::Disconnected(format!("died at {}", Picos(self.now)));
        let tasks = self.tasks.filter(|of| of.rank == rank);
        let seats: Vec<_> = (0..self.groups.len())
            .filter_map(|group| {
                let local = self.groups[group].members.iter().position(|member| *member == rank)?;
                Some((GroupId(group as u32), Rank(local as u32)))
            })
            .collect();
        for (group, local) in seats {
            let within = tasks.iter().find_map(|task| {
                let entered = self.tasks.at(*task).entered.as_ref()?;
                (entered.member.group == group).then(|| entered.call.clone())
            });
            if self.calls(group).die(local, cause.clone(), within.as_deref()) {
                self.alarm(group);
            }
            let point_to_point = self.channels.point_to_point(group, local);
            point_to_point.into_iter().for_each(|channel| self.fail_orphaned(channel));
        }
        for task in tasks {
            if matches!(self.tasks.at(task).doing, Doing::Blocked(Wait::Posts { .. })) {
                self.wake(task);
            }
        }
    }

    /// The time that a task's own work takes, starting now.
    pub fn takes(&mut self, task: TaskId, span: Picos) -> Picos {
        let (rank, now) = (self.tasks.at(task).rank, self.tasks.at(task).now);
        self.options.faults.takes(rank, Picos(now), span)
    }

    /// The time of a launch or a computation, with jitter.
    pub fn takes_about(&mut self, task: TaskId, what: Paced, nth: u64, span: Picos) -> Picos {
        let (rank, now) = (self.tasks.at(task).rank, self.tasks.at(task).now);
        let more = self.options.faults.jitter(rank, what, nth, Picos(now));
        self.takes(task, span + more)
    }

    /// A message's checksum does not match its bytes: its receiver fails the operation.
    pub fn damaged(&mut self, receiver: Half, peer: Rank, round: u64, call: &Call, sums: (u32, u32)) {
        let of = self.tasks.at(receiver.task);
        if of.operation != receiver.operation {
            return;
        }
        let Some(member) = of.entered.as_ref().map(|entered| entered.member) else { return };
        let what = format!("its checksum is {:08x}, and that of its bytes {:08x}", sums.0, sums.1);
        let (rank, call) = (member.rank, Box::new(call.clone()));
        self.calls(member.group).fail(rank, Error::Protocol { rank, peer, call, round, what });
        self.alarm(member.group);
    }
}
