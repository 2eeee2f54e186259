//! A rank's transport over virtual links.

use super::core::Core;
use super::event_queue::ScheduledEvent;
use super::tasks::Wait;
use crate::backends::{Member, TaskId};
use crate::schedule::Combine;
use crate::transport::{Event, Frame, Payload, Transport, VirtualTime};
use crate::{Call, Error, Rank, Result};
use allfold_sim::Picos;
use std::sync::Arc;

pub(super) struct Endpoint {
    sim: Arc<Core>,
    task: TaskId,
    member: Member,
}

impl Endpoint {
    pub fn new(sim: Arc<Core>, task: TaskId, member: Member) -> Endpoint {
        Endpoint { sim, task, member }
    }
}

impl Transport for Endpoint {
    fn enter(&mut self, call: &Arc<Call>) -> Result<()> {
        self.sim.lock().enter(self.task, self.member, call)
    }

    fn alloc(&self, bytes: usize) -> Payload {
        self.sim.pool.take(bytes)
    }

    fn post_send(&mut self, to: Rank, lane: u32, frame: Frame) {
        let mut state = self.sim.lock();
        if state.dies_before(self.task, frame.round) {
            return;
        }
        let half = state.tasks.half(self.task);
        state.tasks.at(self.task).sent += frame.payload.length() as u64;
        state.request(self.task, ScheduledEvent::Send { half, member: self.member, to, lane, frame });
    }

    fn post_recv(&mut self, from: Rank, lane: u32, _bytes: usize, how: Combine) {
        let mut state = self.sim.lock();
        let (half, reduced) = (state.tasks.half(self.task), how == Combine::Reduce);
        state.request(self.task, ScheduledEvent::Receive { half, member: self.member, from, lane, reduced });
    }

    fn wait(&mut self, round: u64) -> Result<Event> {
        let mut state = self.sim.lock();
        state.dies_before(self.task, round);
        loop {
            if let Some(error) = state.failure(self.member) {
                return Err(error);
            }
            if let Some(event) = state.tasks.at(self.task).inbox.pop_front() {
                return Ok(event);
            }
            let wait = Wait::Posts { group: self.member.group, round };
            state = self.sim.block(state, self.task, wait);
        }
    }

    fn done(&mut self) {
        let mut state = self.sim.lock();
        state.dies_before(self.task, u64::MAX);
        state.finish(self.task, true);
    }

    fn fail(&mut self, error: Error) -> Error {
        let (task, member) = (self.task, self.member);
        let mut state = self.sim.lock();
        state.finish(task, false);
        if state.failure(member).is_none() {
            let error = error.clone();
            state.request(task, ScheduledEvent::Fail { task, member, error });
            state = self.sim.block(state, task, Wait::Applied);
        }
        state.failure(member).unwrap_or(error)
    }

    fn virtual_time(&mut self) -> Option<&mut dyn VirtualTime> {
        Some(self)
    }
}

impl VirtualTime for Endpoint {
    fn moved(&mut self, round: u64, bytes: usize, how: Combine) -> bool {
        let mut state = self.sim.lock();
        let span = state.local(self.task, bytes, how == Combine::Reduce);
        if span > Picos::ZERO {
            state.move_ends(self.task, span, round);
        }
        span == Picos::ZERO
    }
}
