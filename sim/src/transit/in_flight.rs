//! The messages under way, by number, and the network that their bytes share.

use super::fault_state::FaultState;
use crate::{Bytes, BytesPerSec, Costs, Crossing, Faults, FlowId, FlowNetwork, Picos, Rank, Sharing};

/// No message.
const NONE: u32 = u32::MAX;

/// A message between its start and its arrival. One of few words fits a line of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct InFlight<M> {
    /// The number of its channel.
    pub channel: u32,
    /// How many bytes it has.
    pub bytes: Bytes,
    /// When its bytes began to flow; until then, when it started.
    pub flow: Picos,
    /// What the engine keeps with it.
    pub of: M,
}

/// What follows when a message has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// When it arrives and, where it reduces, is combined; `None`: never.
    pub arrives: Option<Picos>,
    /// Whether a second one follows at once: see [`Transit::copy`].
    pub copied: bool,
}

/// The messages under way over a network.
#[derive(Clone, Debug)]
pub struct Transit<M> {
    /// Links, then a gate for every rule that keeps ranks apart.
    pub network: FlowNetwork,
    /// `None` where all rules are steady.
    pub faults: Option<Box<FaultState>>,
    messages: Vec<InFlight<M>>,
    free: Vec<u32>,
    /// The message that each flow carries.
    carried: Vec<u32>,
}

impl<M> Transit<M> {
    /// No messages yet. `links` have the bandwidth that the steady rules leave them.
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

    /// The next instant at which a message leaves, something in the engine's queue is due or bandwidths change.
    pub fn next(&mut self, faults: &Faults, queued: Option<Picos>) -> Option<Picos> {
        let next = [self.network.next_finish(), queued].into_iter().flatten().min();
        match &mut self.faults {
            None => next,
            Some(state) => state.next(faults, next, &self.network),
        }
    }

    /// Shares the links out, once all is applied that happens at an instant.
    pub fn settle(&mut self, faults: &Faults, now: Picos) {
        if let Some(state) = &mut self.faults {
            state.set_bandwidths(faults, now, &mut self.network);
        }
        self.network.settle(now);
    }

    /// What a sender spends on a message before the first byte, which takes `overhead` of its own time.
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

    /// A message starts: gives its number, which is used again once [`Transit::release`] has been called.
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

    /// A message by its number.
    #[inline]
    pub fn get(&self, number: u32) -> &InFlight<M> {
        &self.messages[number as usize]
    }

    /// A message by its number.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> &mut InFlight<M> {
        &mut self.messages[number as usize]
    }

    /// All messages by number, those that have been released among them.
    pub fn messages(&self) -> &[InFlight<M>] {
        &self.messages
    }

    /// All messages by number, those that have been released among them.
    pub fn messages_mut(&mut self) -> &mut [InFlight<M>] {
        &mut self.messages
    }

    /// The numbers of released messages.
    pub fn released(&self) -> &[u32] {
        &self.free
    }

    /// The bytes of a message begin to flow.
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

    /// Whether the message that has left is a duplicate, for which no rank waits: then it is released and its channel is free.
    pub fn ends_copy(&mut self, number: u32) -> bool {
        let copy = self.faults.as_ref().is_some_and(|state| state.message(number).copy);
        if copy {
            self.release(number);
        }
        copy
    }

    /// The last byte of a message is on its way, over links of `latency` in all; `combines` is its receiver, where that
    /// reduces what arrives.
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
        // Whole nanoseconds are cut once, from the first byte to the arrival.
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

    /// Starts the duplicate of a message that is sent twice: it uses the channel and the links once more.
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

    /// A message has arrived: its number may be used again.
    #[inline]
    pub fn release(&mut self, number: u32) {
        self.free.push(number);
    }

    /// A rank dies: the messages under way of channels that it cuts off stop where they are.
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
