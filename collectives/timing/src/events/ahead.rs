//! Prefetching of the data that a batch of events will access.
//!
//! ```text
//! one by one    message ... step ... window ... channel ... | message ... step ...      each load waits for the one before
//! read ahead    messages . steps, channels . windows . | events, from the cache         loads overlap
//! ```
//!
//! The data of a large run does not fit the caches, and in an event each address depends on the load before, so that the processor
//! would wait for most loads in turn. A pass over a batch of events does independent loads, which overlap. The pass changes only
//! the duration of later passes, never a result.

use super::super::Representatives;
use super::engine::Events;
use super::event_queue::ScheduledEvent;
use super::message::Halves;
use super::window::Slot;
use allfold_sim::FlowId;
use allfold_sim::transit::InFlight;
use std::hint::black_box;

impl<C: Representatives> Events<'_, '_, C> {
    /// Prefetches the data that the departure of these finished flows' messages will access.
    pub(super) fn read_ahead_of_leaving(&self, through: &[FlowId]) {
        if through.len() < 2 {
            return;
        }
        let messages = || through.iter().map(|flow| self.transit.get(self.transit.carried(*flow)));
        black_box(messages().fold(0, |sum, message| sum ^ message.channel));
        let slots = &self.windows.slots;
        let near = |message: &InFlight<Halves>| {
            let steps = slots[message.of.sender].segment ^ slots[message.of.receiver].segment;
            steps ^ u32::from(self.channels.get(message.channel).busy) ^ self.program(message.of.sender)
        };
        black_box(messages().fold(0, |sum, message| sum ^ near(message)));
        let next = |message: &InFlight<Halves>| {
            let channel = self.channels.get(message.channel);
            let segment = |slot: u32| slots.get(slot).map_or(0, |step| step.segment);
            let path = self.channels.path(message.channel).map_or(0, |path| path.len() as u32);
            segment(channel.sends.0) ^ segment(channel.receives.0) ^ path ^ self.window(message.of.sender)
        };
        black_box(messages().fold(0, |sum, message| sum ^ next(message)));
    }

    /// Prefetches the state that these events of the event queue will access.
    pub(super) fn read_ahead_of(&self, events: &[ScheduledEvent]) {
        if events.len() < 2 {
            return;
        }
        let arriving = || {
            events.iter().filter_map(|due| match due {
                ScheduledEvent::Arrive(message) => Some(self.transit.get(*message)),
                _ => None,
            })
        };
        black_box(arriving().fold(0, |sum, message| sum ^ message.channel));
        let near = |message: &InFlight<Halves>| {
            let channel = self.channels.get(message.channel).under_way;
            self.windows.slots[message.of.receiver].segment ^ channel ^ self.program(message.of.receiver)
        };
        black_box(arriving().fold(0, |sum, message| sum ^ near(message)));
        black_box(arriving().fold(0, |sum, message| sum ^ self.window(message.of.receiver)));
    }

    /// Prefetches the program position of a step's representative.
    fn program(&self, slot: u32) -> u32 {
        let representative = self.windows.representative(slot);
        self.windows.states[representative as usize].head as u32
    }

    /// Prefetches the window that the end of a step changes.
    fn window(&self, slot: u32) -> u32 {
        let representative = self.windows.representative(slot);
        let upcoming = self.windows.upcoming(representative);
        let segment = |step: Option<&Slot>| step.map_or(0, |step| step.segment);
        segment(self.windows.slots.get(upcoming))
            ^ self.programs.upcoming(representative)
            ^ segment(self.windows.related(slot))
    }
}
