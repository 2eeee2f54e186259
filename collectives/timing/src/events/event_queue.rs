//! The queue of pending events, each due at the time of its insertion plus a delay; a run has few different delays.
//!
//! Time only moves forward, so all events with the same delay come due in the order of their insertion. Each delay has a first-in
//! first-out queue, and the next event is the least of a few heads. Delays beyond the first few share a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// An event whose time is known in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ScheduledEvent {
    /// A representative's launch is over, and it takes its first step.
    Launch(u32),
    /// A message's overhead is over, and its bytes begin to flow.
    Flow(u32),
    /// A message has arrived and, if it is reduced, has been combined.
    Arrive(u32),
    /// A step within one rank's memory is done.
    Local(u32),
    /// A representative dies.
    Die(u32),
}

const QUEUES: usize = 8;

/// The pending events.
#[derive(Clone, Debug, Default)]
pub(super) struct EventQueue {
    queues: Vec<(u64, VecDeque<(u64, ScheduledEvent)>)>,
    rest: BinaryHeap<Reverse<(u64, ScheduledEvent)>>,
}

impl EventQueue {
    /// Inserts an event for time `now + delay`. `now` must not decrease from call to call.
    #[inline]
    pub(super) fn after(&mut self, now: u64, delay: u64, due: ScheduledEvent) {
        let at = now.saturating_add(delay);
        if let Some((_, queue)) = self.queues.iter_mut().find(|(known, _)| *known == delay) {
            return queue.push_back((at, due));
        }
        if let Some((known, queue)) = self.queues.iter_mut().find(|(_, queue)| queue.is_empty()) {
            *known = delay;
            return queue.push_back((at, due));
        }
        if self.queues.len() < QUEUES {
            return self.queues.push((delay, VecDeque::from([(at, due)])));
        }
        self.rest.push(Reverse((at, due)));
    }

    /// The time of the next event.
    #[inline]
    pub(super) fn next(&self) -> Option<u64> {
        let heads = self.queues.iter().filter_map(|(_, queue)| queue.front().map(|head| head.0));
        heads.chain(self.rest.peek().map(|event| event.0.0)).min()
    }

    /// Moves events that are due at `now` into `due`, until `due` has `most` entries.
    #[inline]
    pub(super) fn take(&mut self, now: u64, most: usize, due: &mut Vec<ScheduledEvent>) {
        for (_, queue) in &mut self.queues {
            while due.len() < most
                && let Some((_, event)) = queue.pop_front_if(|head| head.0 <= now)
            {
                due.push(event);
            }
        }
        while due.len() < most && self.rest.peek().is_some_and(|event| event.0.0 <= now) {
            due.extend(self.rest.pop().map(|event| event.0.1));
        }
    }

    /// Adds `by` to the times of all events.
    pub(super) fn shift(&mut self, by: u64) {
        self.queues.iter_mut().flat_map(|(_, queue)| queue).for_each(|event| event.0 += by);
        self.rest = self.rest.drain().map(|Reverse((at, due))| Reverse((at + by, due))).collect();
    }

    /// All events with their times, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, ScheduledEvent)> + '_ {
        let queued = self.queues.iter().flat_map(|(_, queue)| queue.iter().copied());
        queued.chain(self.rest.iter().map(|event| event.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn take_all(event_queue: &mut EventQueue, now: u64, put: &[u64], given: &mut Vec<u32>) {
        let mut due = Vec::new();
        loop {
            event_queue.take(now, 3, &mut due);
            assert!(due.len() <= 3);
            if due.is_empty() {
                return;
            }
            for event in due.drain(..) {
                let ScheduledEvent::Flow(which) = event else { panic!("{event:?} was never put down") };
                assert_eq!(put[which as usize], now);
                given.push(which);
            }
        }
    }

    proptest! {
        #[test]
        fn gives_events_in_order_of_time(delays in prop::collection::vec(0u64..20, 1..200)) {
            let (mut event_queue, mut now, mut given) = (EventQueue::default(), 0, Vec::new());
            let mut put = Vec::new();
            for (number, &delay) in delays.iter().enumerate() {
                event_queue.after(now, delay, ScheduledEvent::Flow(number as u32));
                put.push(now + delay);
                if number % 3 == 0 {
                    now = event_queue.next().unwrap();
                    take_all(&mut event_queue, now, &put, &mut given);
                }
            }
            while let Some(at) = event_queue.next() {
                prop_assert!(at >= now);
                now = at;
                take_all(&mut event_queue, now, &put, &mut given);
            }
            given.sort_unstable();
            prop_assert_eq!(given, (0..delays.len() as u32).collect::<Vec<_>>());
        }
    }
}
