//! A rank's way to its peers over virtual links.

use super::agenda::Due;
use super::core::Core;
use super::state::Wait;
use crate::backends::{ActorId, Member};
use crate::schedule::Combine;
use crate::transport::{Event, Frame, Payload, Transport, VirtualTime};
use crate::{Call, Error, Rank, Result};
use allfold_sim::Picos;
use std::sync::Arc;

pub(super) struct Endpoint {
    sim: Arc<Core>,
    actor: ActorId,
    member: Member,
}

impl Endpoint {
    pub fn new(sim: Arc<Core>, actor: ActorId, member: Member) -> Endpoint {
        Endpoint { sim, actor, member }
    }
}

impl Transport for Endpoint {
    fn enter(&mut self, call: &Arc<Call>) -> Result<()> {
        self.sim.lock().enter(self.actor, self.member, call)
    }

    fn room(&self, bytes: usize) -> Payload {
        self.sim.pool.take(bytes)
    }

    fn post_send(&mut self, to: Rank, lane: u32, frame: Frame) {
        let mut state = self.sim.lock();
        if state.dies_before(self.actor, frame.round) {
            return;
        }
        let half = state.half(self.actor);
        state.request(self.actor, Due::Send { half, member: self.member, to, lane, frame });
    }

    fn post_recv(&mut self, from: Rank, lane: u32, _bytes: usize, how: Combine) {
        let mut state = self.sim.lock();
        let (half, reduced) = (state.half(self.actor), how == Combine::Reduce);
        state.request(self.actor, Due::Receive { half, member: self.member, from, lane, reduced });
    }

    fn wait(&mut self, round: u64) -> Result<Event> {
        let mut state = self.sim.lock();
        state.dies_before(self.actor, round);
        loop {
            if let Some(error) = state.failure(self.member) {
                return Err(error);
            }
            if let Some(event) = state.news(self.actor) {
                return Ok(event);
            }
            let wait = Wait::Posts { group: self.member.group, round };
            state = self.sim.block(state, self.actor, wait);
        }
    }

    fn done(&mut self) {
        let mut state = self.sim.lock();
        state.dies_before(self.actor, u64::MAX);
        state.finish(self.actor, true);
    }

    fn fail(&mut self, error: Error) -> Error {
        let (actor, member) = (self.actor, self.member);
        let mut state = self.sim.lock();
        state.finish(actor, false);
        if state.failure(member).is_none() {
            let error = error.clone();
            state.request(actor, Due::Fail { actor, member, error });
            state = self.sim.block(state, actor, Wait::Applied);
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
        let span = state.local(self.actor, bytes, how == Combine::Reduce);
        if span > Picos::ZERO {
            state.move_ends(self.actor, span, round);
        }
        span == Picos::ZERO
    }
}
