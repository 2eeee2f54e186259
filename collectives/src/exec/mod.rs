//! The executor: runs any schedule on real bytes over any transport.
//!
//! ```text
//! steps     0 1 2 | 3 4 5 6 | 7 8 ..       the window: W steps from the oldest unfinished one
//!           done  | x . x . | not issued
//!                   ^   '-- starts: no earlier unfinished step touches what it touches
//!                   '------ in flight: both halves posted, neither awaited first
//! ```
//!
//! The executor follows the execution rule of `docs/ARCHITECTURE.md`, so it cannot deadlock where sends and receives match one to one,
//! for any window and without any buffering. On virtual time it finishes at the time that the time-only engines compute.

mod buffers;
mod route;
mod store;
mod window;

pub(crate) use buffers::Buffers;
pub(crate) use route::Route;

use crate::schedule::{Region, Schedule};
use crate::transport::{Event, Frame};
use crate::{Call, DType, Error, Geometry, Rank, ReduceOp, Result};
use std::sync::Arc;
use store::Store;
use window::{Half, Slot, Window};

/// The part of one rank in one operation.
pub(crate) struct Execution<'a> {
    pub schedule: &'a dyn Schedule,
    pub geometry: &'a Geometry,
    pub rank: Rank,
    /// How many steps may be in flight; 1 or more.
    pub window: u32,
    pub dtype: DType,
    /// How [`crate::schedule::Combine::Reduce`] combines.
    pub op: ReduceOp,
    pub call: Arc<Call>,
}

impl Execution<'_> {
    /// Runs all of the rank's steps, after the operation was entered. An error has been reported to the group when it is returned; the
    /// buffers are then undefined.
    pub fn run(&self, buffers: Buffers<'_>, mut route: Route<'_>) -> Result<()> {
        self.steps(buffers, &mut route).map_err(|error| route.transport().fail(error))
    }

    fn steps(&self, buffers: Buffers<'_>, route: &mut Route<'_>) -> Result<()> {
        let mut store = Store::new(buffers, self.geometry, self.dtype, self.op);
        let mut window = Window::new(self.schedule, self.rank, self.window);
        while let Some(round) = window.issue() {
            self.start(&mut window, &mut store, route)?;
            if !window.finish() {
                let event = match route {
                    Route::Direct(direct) => direct.progress(round, &mut store)?,
                    Route::Frames(transport) => transport.wait(round)?,
                };
                self.apply(event, &mut window, &mut store)?;
                window.finish();
            }
        }
        store.settle();
        Ok(())
    }

    /// Starts every step that conflicts with no earlier unfinished step, and posts its halves, on each channel in program order.
    fn start(&self, window: &mut Window, store: &mut Store, route: &mut Route<'_>) -> Result<()> {
        // Channels on which an earlier message is still to be posted.
        let (mut held_out, mut held_in) = (Vec::new(), Vec::new());
        for slot in window.slots() {
            if !slot.started && slot.blockers == 0 {
                self.begin(slot, store, route)?;
            }
            if let (Half::Due, Some((to, span))) = (slot.send, slot.step.send) {
                let channel = (to, slot.lane);
                let free = slot.started && !held_out.contains(&channel);
                match (slot.payload.take_if(|_| free), &mut *route) {
                    (Some(payload), route) => {
                        slot.send = Half::Posted;
                        let frame = Frame { call: self.call.clone(), round: slot.round, payload };
                        route.transport().post_send(to, slot.lane, frame);
                    }
                    (None, Route::Direct(direct)) if free => {
                        slot.send = Half::Posted;
                        direct.send_from(to, slot.lane, slot.round, span, store.bytes(span));
                    }
                    _ => held_out.push(channel),
                }
            }
            if let (Half::Due, Some((from, span, how))) = (slot.recv, slot.step.recv) {
                let channel = (from, slot.lane);
                if slot.started && !held_in.contains(&channel) {
                    slot.recv = Half::Posted;
                    let bytes = store.bytes(span);
                    match &mut *route {
                        Route::Direct(direct) if span.region == Region::Data => {
                            direct.recv_into(from, slot.lane, slot.round, span, how, bytes);
                        }
                        route => route.transport().post_recv(from, slot.lane, bytes, how),
                    }
                } else {
                    held_in.push(channel);
                }
            }
        }
        Ok(())
    }

    /// Starts a step: copies the data that it sends, unless they can be sent in place. Executes a local step immediately.
    fn begin(&self, slot: &mut Slot, store: &mut Store, route: &mut Route<'_>) -> Result<()> {
        slot.started = true;
        if let Route::Frames(_) = route {
            store.settle();
        }
        let wrong = |what: String| self.wrong(slot.round, what);
        let local = |peer: Option<Rank>| peer == Some(self.rank);
        match (slot.step.send, slot.step.recv) {
            (Some((to, from)), Some((peer, into, how))) if local(Some(to)) && local(Some(peer)) => {
                let bytes = store.bytes(from);
                store.move_within(from, into, how, |bytes| route.transport().alloc(bytes)).map_err(wrong)?;
                let time = route.transport().virtual_time();
                let done = time.is_none_or(|time| time.moved(slot.round, bytes, how));
                let half = if done { Half::Done } else { Half::Posted };
                (slot.send, slot.recv) = (half, half);
            }
            (send, recv) if local(send.map(|s| s.0)) || local(recv.map(|r| r.0)) => {
                return Err(wrong("one half of a local step is missing".into()));
            }
            // The span is sent in place, unless the same step writes to the span.
            (Some((_, span)), recv)
                if matches!(route, Route::Direct(_))
                    && store.is_there(span)
                    && recv.is_none_or(|(_, written, _)| !written.overlaps(&span)) => {}
            (Some((_, span)), _) => {
                let payload = store.payload(span, |bytes| route.transport().alloc(bytes));
                slot.payload = Some(payload.map_err(wrong)?);
            }
            (None, _) => {}
        }
        Ok(())
    }

    fn apply(&self, event: Event, window: &mut Window, store: &mut Store) -> Result<()> {
        match event {
            Event::Sent { to, lane } => {
                let mut slots = window.slots();
                let sent = slots.find(|slot| slot.sends_on(to, lane));
                sent.into_iter().for_each(|slot| slot.send = Half::Done);
            }
            Event::Landed { from, lane } => {
                let mut slots = window.slots();
                let landed = slots.find(|slot| slot.receives_on(from, lane));
                landed.into_iter().for_each(|slot| slot.recv = Half::Done);
            }
            Event::Moved { round } => {
                let mut slots = window.slots();
                let moved = slots.find(|slot| slot.round == round);
                moved.into_iter().for_each(|slot| (slot.send, slot.recv) = (Half::Done, Half::Done));
            }
            Event::Received { from, lane, frame } => {
                let mut slots = window.slots();
                if let Some(slot) = slots.find(|slot| slot.receives_on(from, lane)) {
                    self.receive(slot, from, frame, store)?;
                    slot.recv = Half::Done;
                }
            }
        }
        Ok(())
    }

    /// Compares a frame with the frame that the schedule expects, and stores its bytes.
    fn receive(&self, slot: &Slot, peer: Rank, frame: Frame, store: &mut Store) -> Result<()> {
        let Some((_, span, how)) = slot.step.recv else { return Ok(()) };
        if *frame.call != *self.call {
            let (mine, theirs) = (self.call.as_ref().clone().into(), frame.call.as_ref().clone().into());
            return Err(Error::Mismatch { rank: self.rank, mine, peer, theirs });
        }
        let (bytes, len) = (store.bytes(span), store.arrived(&frame.payload));
        if frame.round != slot.round || len != bytes {
            let round = frame.round;
            let what =
                format!("expected {bytes} bytes of round {}, got {len} bytes of round {round}", slot.round);
            let call = Box::new(self.call.as_ref().clone());
            return Err(Error::Protocol { rank: self.rank, peer, call, round: slot.round, what });
        }
        store.write(span, how, frame.payload).map_err(|what| self.wrong(slot.round, what))
    }

    fn wrong(&self, round: u64, what: String) -> Error {
        Error::Schedule { rank: self.rank, call: Box::new(self.call.as_ref().clone()), round, what }
    }
}
