//! The messages under way, by number, and the network that carries them.

use super::fault_state::FaultState;
use crate::{Bytes, BytesPerSec, Costs, Crossing, Faults, FlowId, FlowNetwork, Picos, Rank, Sharing};

/// The message number that means "no message".
const NONE: u32 = u32::MAX;

/// A message between its start and its arrival. With a small `M` it fits a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct InFlight<M> {
    /// The number of the message's channel.
    pub channel: u32,
    /// The size of the message.
    pub bytes: Bytes,
    /// When the message's bytes began to flow; before that, when the message started.
    pub flow: Picos,
    /// The engine's own data about the message.
    pub of: M,
}

/// What follows after a message has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// When the message arrives and, if the receiver reduces it, is combined; `None` if it never arrives.
    pub arrives: Option<Picos>,
    /// Whether a duplicate of the message follows at once: see [`Transit::copy`].
    pub copied: bool,
}

/// The messages under way, and the network that they share.
#[derive(Clone, Debug)]
pub struct Transit<M> {
    /// The links of the topology, followed by a gate for every rule that separates ranks.
    pub network: FlowNetwork,
    /// The state of fault rules; `None` if all rules are steady.
    pub faults: Option<Box<FaultState>>,
    messages: Vec<InFlight<M>>,
    free: Vec<u32>,
    /// The message that each flow carries.
    carried: Vec<u32>,
}

impl<M> Transit<M> {
    /// A network without messages. `links` are the bandwidths of the topology's links under the steady rules.
    pub fn new(links: Vec<BytesPerSec>, ranks: u32, faults: &Faults, sharing: Sharing) -> Transit<M> {
        let state = FaultState::new(faults, &links, ranks).map(Box::new);
        let gates = std::iter::repeat_n(BytesPerSec(u64::MAX), faults.gates() as usize);
        Transit {
            network: FlowNetwork::new(links.into_iter().chain(gates), sharing),
            faults: state,
            messages: Vec::new(),
            free: Vec::new(),
            carried: Vec::new(),
        }
    }

    /// The next instant at which a message leaves, the engine's queue has an event (`queued`) or a bandwidth changes.
    pub fn next(&mut self, faults: &Faults, queued: Option<Picos>) -> Option<Picos> {
        let next = [self.network.next_finish(), queued].into_iter().flatten().min();
        match &mut self.faults {
            None => next,
            Some(state) => state.next(faults, next, &self.network),
        }
    }

    /// Solves the links' shares, after all changes at time `now` have been made.
    pub fn settle(&mut self, faults: &Faults, now: Picos) {
        if let Some(state) = &mut self.faults {
            state.set_bandwidths(faults, now, &mut self.network);
        }
        self.network.settle(now);
    }

    /// The time that a sender spends on a message before its first byte flows: `overhead`, or more if fault rules slow it down.
    #[inline]
    pub fn overhead(
        &self,
        faults: &Faults,
        sender: impl FnOnce() -> Rank,
        now: Picos,
        overhead: Picos,
    ) -> Picos {
        if self.faults.is_none() { overhead } else { faults.takes(sender(), now, overhead) }
    }

    /// Starts a message and returns its number, which is used again after [`Transit::release`].
    #[inline]
    pub fn start(&mut self, now: Picos, channel: u32, bytes: Bytes, of: M) -> u32 {
        let message = InFlight { channel, bytes, flow: now, of };
        match self.free.pop() {
            Some(number) => {
                self.messages[number as usize] = message;
                number
            }
            None => self.push(message),
        }
    }

    fn push(&mut self, message: InFlight<M>) -> u32 {
        self.messages.push(message);
        self.messages.len() as u32 - 1
    }

    /// The message with this number.
    #[inline]
    pub fn get(&self, number: u32) -> &InFlight<M> {
        &self.messages[number as usize]
    }

    /// The message with this number, mutable.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> &mut InFlight<M> {
        &mut self.messages[number as usize]
    }

    /// All messages in the order of their numbers, including released messages.
    pub fn messages(&self) -> &[InFlight<M>] {
        &self.messages
    }

    /// All messages in the order of their numbers, including released messages, mutable.
    pub fn messages_mut(&mut self) -> &mut [InFlight<M>] {
        &mut self.messages
    }

    /// The numbers of released messages.
    pub fn released(&self) -> &[u32] {
        &self.free
    }

    /// Lets the bytes of a message begin to flow over `path`.
    #[inline]
    pub fn flow(&mut self, now: Picos, number: u32, path: &[Crossing]) {
        let message = &mut self.messages[number as usize];
        message.flow = now;
        let FlowId(flow) = self.network.begin(now, path, message.bytes);
        let flow = flow as usize;
        if self.carried.len() <= flow {
            self.carried.resize(flow + 1, NONE);
        }
        self.carried[flow] = number;
    }

    /// The number of the message that a flow carries.
    #[inline]
    pub fn carried(&self, FlowId(flow): FlowId) -> u32 {
        self.carried[flow as usize]
    }

    /// Returns whether the message that has left is a duplicate, and releases a duplicate: no rank waits for it.
    pub fn ends_copy(&mut self, number: u32) -> bool {
        let copy = self.faults.as_ref().is_some_and(|state| state.message(number).copy);
        if copy {
            self.release(number);
        }
        copy
    }

    /// Computes what follows after the last byte of a message has left. `latency` is that of the whole path; `combines` is the
    /// receiver if the receiver reduces what arrives.
    #[inline]
    pub fn leave(
        &mut self,
        now: Picos,
        number: u32,
        (latency, combines): (Picos, Option<Rank>),
        costs: &Costs,
        faults: &Faults,
    ) -> Leaving {
        let InFlight { channel, bytes, flow, .. } = self.messages[number as usize];
        // The truncation to whole nanoseconds is applied once, to the span from the first byte to the arrival.
        let mut arrives = (flow + costs.rounded(now - flow + latency)).later(now);
        if let Some(state) = &self.faults {
            arrives += state.message(number).late;
        }
        if let Some(receiver) = combines {
            arrives += faults.takes(receiver, arrives, faults.costs(receiver, costs).reduce(bytes));
        }
        let Some(state) = &mut self.faults else { return Leaving { arrives: Some(arrives), copied: false } };
        let fault = state.message_mut(number);
        fault.left = true;
        let (dropped, copied) = (fault.dropped, fault.duplicated);
        Leaving { arrives: (!dropped).then(|| state.in_order(channel, arrives)), copied }
    }

    /// Starts the duplicate of a message that is sent twice. The duplicate occupies the channel and the links again.
    pub fn copy(&mut self, now: Picos, number: u32, of: M, path: &[Crossing]) {
        let InFlight { channel, bytes, .. } = self.messages[number as usize];
        let copy = self.push(InFlight { channel, bytes, flow: now, of });
        if let Some(state) = &mut self.faults {
            let fault = state.message_mut(copy);
            *fault = Default::default();
            fault.copy = true;
        }
        self.flow(now, copy, path);
    }

    /// Releases a message that has arrived, so that its number may be used again.
    #[inline]
    pub fn release(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Marks a rank as dead and stops the messages under way whose channels `cut_off` selects.
    pub fn die(&mut self, rank: Rank, now: Picos, cut_off: impl Fn(&Transit<M>, u32) -> bool) {
        let Some(state) = &mut self.faults else { return };
        state.die(rank, now);
        let torn = self.network.flows().filter(|flow| cut_off(self, self.get(self.carried(*flow)).channel));
        let torn: Vec<FlowId> = torn.collect();
        torn.into_iter().for_each(|flow| self.network.cancel(now, flow));
    }

    /// Whether a rank is dead.
    pub fn is_dead(&self, rank: Rank) -> bool {
        self.faults.as_ref().is_some_and(|state| state.died(rank).is_some())
    }
}
