//! The state of a run on the event queue, and the life cycle of a step.

use super::super::run::Run;
use super::super::{Error, Job, Representatives};
use super::channels::Channels;
use super::event_queue::{EventQueue, ScheduledEvent};
use super::message::Halves;
use super::program::{Next, Programs};
use super::sent::Sink;
use super::window::{Half, NONE, Slot, Windows};
use allfold_schedules::schedule::{Combine, Rank, Span, Step};
use allfold_sim::{Bytes, Crossing, EventHash, FlowId, LinkId, Picos, Transit};

/// The number of events that are processed as a batch, so that their data fits the first-level cache.
pub(super) const BATCH: usize = 32;

pub(super) struct Events<'a, 's, C> {
    pub(super) job: &'a Job<'a>,
    pub(super) cast: &'a C,
    pub(super) programs: Programs<'a>,
    pub(super) windows: Windows,
    pub(super) channels: Channels,
    pub(super) event_queue: EventQueue,
    pub(super) transit: Transit<Halves>,
    /// Steps that wait for no other step and are to be posted.
    ready: Vec<u32>,
    through: Vec<FlowId>,
    due: Vec<ScheduledEvent>,
    pub(super) path: Vec<Crossing>,
    pub(super) run: Run,
    pub(super) hash: EventHash,
    pub(super) sink: Option<Sink<'s>>,
}

/// The latest time that is accepted, in picoseconds, so that adding to a time cannot overflow.
pub(super) const LAST: u64 = u64::MAX / 4;

impl<'a, 's, C: Representatives> Events<'a, 's, C> {
    pub(super) fn new(
        job: &'a Job<'a>,
        cast: &'a C,
        sink: Option<Sink<'s>>,
    ) -> Result<Events<'a, 's, C>, Error> {
        let (representatives, schedule) = (cast.representatives(), job.schedule);
        let windows = Windows::new(representatives, job.window, schedule.rounds())
            .ok_or(Error::Overflow("ranks x window (at most 2^32, with a window of at most 32,768)"))?;
        let mut event_queue = EventQueue::default();
        for representative in 0..representatives {
            event_queue.after(
                0,
                job.launched(cast.rank(representative)).0,
                ScheduledEvent::Launch(representative),
            );
        }
        for (rank, at) in job.faults.deaths_by_clock(cast.representatives()) {
            event_queue.after(0, at.0, ScheduledEvent::Die(cast.representative(rank)));
        }
        let links = (0..cast.links()).map(|link| cast.link(LinkId(link)).bandwidth).collect();
        Ok(Events {
            job,
            cast,
            programs: Programs::new(schedule, cast),
            windows,
            channels: Channels::new(),
            event_queue,
            transit: Transit::new(links, cast.representatives(), job.faults, job.flows()?),
            ready: Vec::new(),
            through: Vec::new(),
            due: Vec::new(),
            path: Vec::new(),
            run: Run::default(),
            hash: EventHash::default(),
            sink,
        })
    }

    /// Whether a repeating pattern may be skipped: no sink receives messages, and no fault rule treats messages differently.
    pub(super) fn may_repeat(&self) -> bool {
        self.sink.is_none() && self.transit.faults.is_none()
    }

    /// The time of the next event.
    pub(super) fn next(&mut self) -> Option<u64> {
        let queued = self.event_queue.next().map(Picos);
        self.transit.next(self.job.faults, queued).map(|next| next.0)
    }

    /// Processes all events of time `now`, then solves the links' shares again.
    pub(super) fn instant(&mut self, now: u64) -> Result<(), Error> {
        if now > LAST {
            return Err(Error::Overflow("the time in picoseconds"));
        }
        let mut through = std::mem::take(&mut self.through);
        self.transit.network.take_finished(Picos(now), &mut through);
        for batch in through.chunks(BATCH) {
            self.read_ahead_of_leaving(batch);
            for flow in batch {
                self.left(now, self.transit.carried(*flow))?;
            }
        }
        through.clear();
        self.through = through;
        let mut due = std::mem::take(&mut self.due);
        loop {
            self.event_queue.take(now, BATCH, &mut due);
            if due.is_empty() {
                break;
            }
            self.read_ahead_of(&due);
            for event in due.drain(..) {
                self.happens(now, event)?;
                self.post_ready(now)?;
            }
        }
        self.due = due;
        self.transit.settle(self.job.faults, Picos(now));
        Ok(())
    }

    fn happens(&mut self, now: u64, event: ScheduledEvent) -> Result<(), Error> {
        match event {
            ScheduledEvent::Launch(representative) if self.is_dead(representative) => Ok(()),
            ScheduledEvent::Launch(representative) => {
                let state = &mut self.windows.states[representative as usize];
                (state.finish, state.chain) = (now, now);
                self.issue(representative)
            }
            ScheduledEvent::Flow(message) => {
                self.flow(now, message);
                Ok(())
            }
            ScheduledEvent::Arrive(message) => self.arrived(now, message),
            ScheduledEvent::Die(representative) => {
                self.die(now, representative);
                Ok(())
            }
            ScheduledEvent::Local(slot) => self.half_done(now, slot, self.windows.slots[slot].posted_chain),
        }
    }

    /// Issues steps of a representative until its window is full.
    fn issue(&mut self, representative: u32) -> Result<(), Error> {
        let rank = self.cast.rank(representative);
        while self.windows.has_space(representative)
            && let Some(next) = self.programs.next(representative, rank)
        {
            self.issue_step(representative, rank, next)?;
        }
        Ok(())
    }

    fn issue_step(&mut self, representative: u32, rank: Rank, next: Next) -> Result<(), Error> {
        let (round, Step { send, recv }, lane) = next;
        let segment = send.map(|(_, span)| span.segment).or(recv.map(|(_, span, _)| span.segment));
        let mut slot = Slot::new(round, segment.unwrap_or(0));
        let at = self.windows.upcoming(representative);
        let local = send.is_some_and(|(to, _)| to == rank) && recv.is_some_and(|(from, ..)| from == rank);
        if let Some((to, span)) = send {
            slot.send = self.half(rank, &slot, round, to, span)?;
            slot.open += 1;
        }
        if let Some((from, span, combine)) = recv {
            slot.receive = self.half(rank, &slot, round, from, span)?;
            slot.reduces = combine == Combine::Reduce;
            slot.open += 1;
        }
        // Each half is queued before the next channel is opened, because opening a channel may remove idle ones.
        if let Some((to, _)) = send.filter(|_| !local) {
            slot.send.channel = self.channel(representative, to, lane);
            self.windows.queue_send(&mut self.channels.get_mut(slot.send.channel).sends, at);
        }
        if let Some((from, ..)) = recv.filter(|_| !local) {
            slot.receive.channel = self.receiving_channel(representative, rank, from, round, lane)?;
            self.windows.queue_receive(&mut self.channels.get_mut(slot.receive.channel).receives, at);
        }
        if local {
            slot.open = 1;
        }
        let (at, free) = self.windows.issue(representative, slot);
        if free {
            self.ready.push(at);
        }
        Ok(())
    }

    /// One half of a step, checked against the ranks, chunks and segments that the schedule declares.
    fn half(&self, rank: Rank, slot: &Slot, round: u64, peer: Rank, span: Span) -> Result<Half, Error> {
        let schedule = self.job.schedule;
        let fits = u64::from(span.first_chunk) + u64::from(span.chunks) <= u64::from(schedule.chunks());
        if peer.0 >= schedule.ranks() || !fits || span.chunks == 0 || span.segment >= schedule.segments() {
            let what = format!("names rank {peer} and {span}, which do not exist");
            return Err(Error::Unmatched { rank, round, what });
        }
        if span.segment != slot.segment {
            let what = format!("takes pieces {} and {} in one step", slot.segment, span.segment);
            return Err(Error::Unmatched { rank, round, what });
        }
        Half::of(span).ok_or(Error::Overflow("the number of scratch copies (at most 65,536)"))
    }

    /// The channel from a representative to a rank, opened if necessary.
    fn channel(&mut self, representative: u32, to: Rank, lane: u32) -> u32 {
        let key = (representative, to.0, lane);
        if let Some(channel) = self.channels.find(key) {
            return channel;
        }
        let from = self.cast.rank(representative);
        self.path.clear();
        let latency = self.cast.route(from, to, &mut self.path);
        self.channels.open(key, &self.path, latency.0)
    }

    /// The channel on which a representative receives. With symmetry classes, the sender's representative names the receiver by
    /// another rank number, which only the sender's own step of that round contains.
    fn receiving_channel(
        &mut self,
        representative: u32,
        rank: Rank,
        from: Rank,
        round: u64,
        lane: u32,
    ) -> Result<u32, Error> {
        let sender = self.cast.representative(from);
        let represented = self.cast.rank(sender);
        if represented == from {
            return Ok(self.channel(sender, rank, lane));
        }
        match self.job.schedule.step(represented, round).send {
            Some((to, _)) if self.cast.representative(to) == representative => {
                Ok(self.channel(sender, to, lane))
            }
            _ => {
                let what = format!("waits for rank {from}, which does not send to it");
                Err(Error::Unmatched { rank, round, what })
            }
        }
    }

    /// Posts both halves of a step, so that its messages can start.
    fn post(&mut self, now: u64, slot: u32) -> Result<(), Error> {
        if self.transit.faults.is_some() && self.dies_before(now, slot) {
            return Ok(());
        }
        self.windows.post(slot);
        let step = &self.windows.slots[slot];
        let (send, receive) = (step.send.channel, step.receive.channel);
        if send == NONE && receive == NONE {
            let step = self.windows.slots[slot];
            let bytes = self.bytes(&step.receive, step.segment);
            let rank = self.cast.rank(self.windows.representative(slot));
            let span = self.job.costs_of(rank).local(bytes, step.reduces);
            let took = self.job.faults.takes(rank, Picos(now), span);
            self.event_queue.after(now, took.0, ScheduledEvent::Local(slot));
            return Ok(());
        }
        if send != NONE {
            let channel = self.channels.get_mut(send);
            channel.send_posted |= channel.sends.0 == slot;
            self.start(now, send)?;
        }
        if receive != NONE {
            let channel = self.channels.get_mut(receive);
            channel.receive_posted |= channel.receives.0 == slot;
            self.start(now, receive)?;
        }
        Ok(())
    }

    /// Ends one half of a step. When both halves have ended, the step ends and its representative can issue more steps.
    pub(super) fn half_done(&mut self, now: u64, slot: u32, chain: u64) -> Result<(), Error> {
        if self.is_dead(self.windows.representative(slot)) {
            return Ok(());
        }
        let step = &mut self.windows.slots[slot];
        step.done_chain = step.done_chain.max(chain);
        step.open -= 1;
        if step.open > 0 {
            return Ok(());
        }
        self.windows.finish(now, slot, &mut self.ready);
        self.issue(self.windows.representative(slot))
    }

    pub(super) fn post_ready(&mut self, now: u64) -> Result<(), Error> {
        while let Some(slot) = self.ready.pop() {
            self.post(now, slot)?;
        }
        Ok(())
    }

    /// The overhead of the step's rank for each message that it sends, before the first byte.
    pub(super) fn overhead(&self, slot: u32) -> u64 {
        if self.job.faults.is_empty() {
            return self.job.costs.overhead.0;
        }
        self.job.costs_of(self.cast.rank(self.windows.representative(slot))).overhead.0
    }

    pub(super) fn bytes(&self, half: &Half, segment: u32) -> Bytes {
        Bytes(self.job.geometry.elements(half.span(segment)) * u64::from(self.job.element))
    }

    /// The result of the run, after the last event.
    pub(super) fn finish(mut self) -> Result<Run, Error> {
        let representatives = self.cast.representatives();
        if let Some(representative) = (0..representatives)
            .find(|&representative| !self.is_finished(representative) && !self.is_dead(representative))
        {
            return Err(if self.transit.faults.is_some() {
                self.failure()
            } else {
                self.deadlock(representative)
            });
        }
        let end = Picos(self.windows.states.iter().map(|state| state.finish).max().unwrap_or(0));
        let usage = |link| self.transit.network.usage(LinkId(link), end);
        let bytes = (0..self.cast.links()).map(|link| usage(link).bytes);
        self.run.links = bytes.collect();
        self.run.finish = self.windows.states.iter().map(|state| Picos(state.finish)).collect();
        self.run.chain = Picos(self.windows.states.iter().map(|state| state.chain).max().unwrap_or(0));
        self.run.hash = self.hash.value();
        Ok(self.run)
    }

    pub(super) fn is_finished(&self, representative: u32) -> bool {
        self.windows.is_empty(representative)
            && self.programs.is_over(representative, self.cast.rank(representative))
    }
}
