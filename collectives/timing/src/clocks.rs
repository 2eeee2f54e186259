//! An engine with one clock per rank and no event queue: exact if no two messages ever share a link.
//!
//! ```text
//! round 0   0 -> 1   1 -> 2   2 -> 3      start = the later of the two ranks' clocks
//! round 1   0 -> 2   1 -> 3               new clock = max(own send has left, own receive is done)
//! ```
//!
//! With a window of one step, a rank has at most one send and one receive in flight. A link that carries the messages of one sender only,
//! or to one receiver only, is therefore never shared: a message has the whole of the least bandwidth on its path, and a rank's time in a
//! round follows from two clocks of the round before. The sweep checks the ownership of every link. If a link belongs to neither a single
//! sender nor a single receiver, the sweep ends without a result, and the caller uses the event queue.
//!
//! Cost: a few dozen bytes per rank and link, tens of nanoseconds per message. A round costs only as much as the ranks that act in
//! it.

use super::owners::Owners;
use super::rates::Rates;
use super::rounds::Rounds;
use super::run::Run;
use super::{Error, Job, Representatives};
use allfold_schedules::schedule::{Combine, Rank, Span, Step};
use allfold_sim::{Bytes, Costs, Crossing, EventHash, Picos};

/// The number that means "no rank", "no representative" or "no link".
const NONE: u32 = u32::MAX;

/// Times a job without an event queue; `None` if the event queue is needed: a link is shared, the window is not 1, a fault rule is
/// not steady, or there is a deadline.
pub(crate) fn run(job: &Job<'_>, cast: &impl Representatives) -> Result<Option<Run>, Error> {
    if job.window != 1 || !job.faults.is_steady() || job.deadline.is_some() {
        return Ok(None);
    }
    let mut sweep = Sweep::new(job, cast);
    let mut rounds = Rounds::new(job, cast);
    while let Some(round) = rounds.advance() {
        if !sweep.round(round, &mut rounds)? {
            return Ok(None);
        }
        rounds.done(job, cast);
    }
    Ok(sweep.finish())
}

/// A representative's time, and the time that it would have if messages had no bytes (for [`super::Bounds::chain`]).
#[derive(Clone, Copy, Default)]
struct Clock {
    now: u64,
    chain: u64,
}

impl Clock {
    fn later(self, other: Clock) -> Clock {
        Clock { now: self.now.max(other.now), chain: self.chain.max(other.chain) }
    }

    fn plus(self, now: u64, chain: u64) -> Clock {
        Clock { now: self.now.saturating_add(now), chain: self.chain.saturating_add(chain) }
    }
}

/// A representative's receive in the current round, and the sender of its last message.
#[derive(Clone, Copy)]
struct Inbox {
    /// The rank that sends to this rank in the current round; `NONE` if no rank does, and between rounds.
    from: u32,
    /// The sender of this rank's last message. Until the sender changes, `rate` and the path stay the same.
    source: u32,
    /// The number of the path's rate in `Rates`.
    rate: u32,
    /// Whether the message is reduced into the data.
    reduce: bool,
    /// Size of this round's message.
    bytes: u64,
    /// Bytes that crossed the current path and are not yet counted on its links.
    uncounted: u64,
    /// The links of the path if it has at most two; otherwise the first entry is `NONE`, and the path is computed again.
    links: [u32; 2],
}

impl Inbox {
    const EMPTY: Inbox =
        Inbox { from: NONE, source: NONE, rate: 0, reduce: false, bytes: 0, uncounted: 0, links: [NONE; 2] };
}

struct Sweep<'a, C> {
    job: &'a Job<'a>,
    cast: &'a C,
    ranks: u32,
    clocks: Vec<Clock>,
    after: Vec<Clock>,
    /// The rank to which each representative sends in the current round; `NONE` if it does not send, and between rounds.
    outbox: Vec<u32>,
    inbox: Vec<Inbox>,
    rates: Rates,
    owners: Owners,
    path: Vec<Crossing>,
    run: Run,
    hash: EventHash,
}

impl<'a, C: Representatives> Sweep<'a, C> {
    fn new(job: &'a Job<'a>, cast: &'a C) -> Sweep<'a, C> {
        let representatives = cast.representatives() as usize;
        let start = |representative| {
            let launch = job.costs_of(cast.rank(representative)).launch.0;
            Clock { now: launch, chain: launch }
        };
        let clocks: Vec<Clock> = (0..cast.representatives()).map(start).collect();
        Sweep {
            job,
            cast,
            ranks: job.schedule.ranks(),
            after: clocks.clone(),
            clocks,
            outbox: vec![NONE; representatives],
            inbox: vec![Inbox::EMPTY; representatives],
            rates: Rates::default(),
            owners: Owners::new(cast.links()),
            path: Vec::new(),
            run: Run { links: vec![0; cast.links() as usize], ..Run::default() },
            hash: EventHash::default(),
        }
    }

    /// Moves the clocks of all acting representatives over one round; false if a link may be shared.
    fn round(&mut self, round: u64, rounds: &mut Rounds) -> Result<bool, Error> {
        let Rounds { acting, idle, .. } = rounds;
        let sent = self.run.messages;
        acting.retain(|&representative| {
            let acts = self.post(representative, round);
            if !acts {
                idle.push(representative);
            }
            acts
        });
        let (sends, mut receives) = (self.run.messages - sent, 0);
        for &representative in acting.iter() {
            if self.inbox[representative as usize].from != NONE {
                receives += 1;
                if !self.message(round, representative)? {
                    return Ok(false);
                }
            }
        }
        if sends != receives {
            return Err(self.unreceived(round, acting));
        }
        for at in acting.iter().map(|&representative| representative as usize) {
            self.clocks[at] = self.after[at];
            self.outbox[at] = NONE;
            self.inbox[at].from = NONE;
        }
        Ok(true)
    }

    /// Posts both halves of a representative's step; false if it has no step in this round.
    #[inline(always)]
    fn post(&mut self, representative: u32, round: u64) -> bool {
        let rank = self.cast.rank(representative);
        let at = representative as usize;
        self.after[at] = self.clocks[at];
        match self.job.schedule.step(rank, round) {
            Step { send: None, recv: None } => return false,
            Step { send: Some((to, _)), recv: Some((_, span, how)) } if to == rank => {
                self.local(representative, span, how);
            }
            Step { send, recv } => {
                if let Some((to, _)) = send {
                    self.outbox[at] = to.0;
                    self.run.messages += 1;
                }
                if let Some((from, span, how)) = recv {
                    let bytes = self.bytes(span);
                    let inbox = &mut self.inbox[at];
                    (inbox.from, inbox.bytes, inbox.reduce) = (from.0, bytes, how == Combine::Reduce);
                }
            }
        }
        true
    }

    fn bytes(&self, span: Span) -> u64 {
        self.job.geometry.elements(span) * u64::from(self.job.element)
    }

    /// Adds the memory time of a rank's local step to the rank's clock.
    fn local(&mut self, representative: u32, span: Span, how: Combine) {
        let bytes = Bytes(self.bytes(span));
        let costs = self.job.costs_of(self.cast.rank(representative));
        let took = costs.local(bytes, how == Combine::Reduce);
        let after = &mut self.after[representative as usize].now;
        *after = after.saturating_add(took.0);
    }

    /// Times the message that `representative` receives in this round; false if the message's path is shared.
    fn message(&mut self, round: u64, representative: u32) -> Result<bool, Error> {
        let at = representative as usize;
        let inbox = self.inbox[at];
        let sender = self.sender(round, representative, Rank(inbox.from))?;
        if inbox.from != inbox.source && !self.reroute(representative, sender) {
            return Ok(false);
        }
        let inbox = &mut self.inbox[at];
        inbox.uncounted = inbox.uncounted.saturating_add(inbox.bytes);
        self.run.bytes = self.run.bytes.saturating_add(inbox.bytes);
        let took = self.rates.times(inbox.rate, inbox.bytes);
        let start = self.clocks[at].later(self.clocks[sender]);
        let left = start.plus(took.left, took.least_left);
        let arrived = if inbox.reduce { took.reduced } else { took.arrived };
        let arrived = start.plus(arrived, took.least_arrived);
        self.after[at] = self.after[at].later(arrived);
        self.after[sender] = self.after[sender].later(left);
        self.hash.message(representative, arrived.now);
        Ok(true)
    }

    /// The representative that sends the message for which `representative` waits.
    fn sender(&self, round: u64, representative: u32, from: Rank) -> Result<usize, Error> {
        let rank = self.cast.rank(representative);
        let known = from.0 < self.ranks;
        let sender = if known { self.cast.representative(from) as usize } else { usize::MAX };
        match self.outbox.get(sender) {
            Some(&to) if to != NONE && self.cast.representative(Rank(to)) == representative => Ok(sender),
            _ => Err(Error::Unmatched {
                rank,
                round,
                what: format!("waits for rank {from}, which does not send to it"),
            }),
        }
    }

    /// The error for a send that no rank receives.
    fn unreceived(&self, round: u64, acting: &[u32]) -> Error {
        let lost = acting.iter().copied().find(|&representative| {
            let to = self.outbox[representative as usize];
            let met = |to: u32| {
                let inbox = &self.inbox[self.cast.representative(Rank(to)) as usize];
                inbox.from != NONE && self.cast.representative(Rank(inbox.from)) == representative
            };
            to != NONE && !(to < self.ranks && met(to))
        });
        let representative = lost.unwrap_or(0);
        let what =
            format!("sends to rank {}, which does not receive it", self.outbox[representative as usize]);
        Error::Unmatched { rank: self.cast.rank(representative), round, what }
    }
}

impl<C: Representatives> Sweep<'_, C> {
    /// Finds the path of the message that `representative` receives; false if a link of it has several senders and several
    /// receivers.
    fn reroute(&mut self, representative: u32, sender: usize) -> bool {
        self.count(representative);
        let to = self.cast.rank(representative);
        let inbox = &mut self.inbox[representative as usize];
        inbox.source = inbox.from;
        self.path.clear();
        let latency = self.cast.route(Rank(inbox.from), to, &mut self.path);
        let bandwidth = self.path.iter().map(|c| self.cast.link(c.link).bandwidth).min();
        let receiver = self.job.costs_of(to);
        let costs = Costs { overhead: self.job.costs_of(Rank(inbox.from)).overhead, ..receiver };
        inbox.rate = self.rates.rate(costs, bandwidth, latency);
        inbox.links = match self.path[..] {
            [one] => [one.link.0, NONE],
            [one, other] => [one.link.0, other.link.0],
            _ => [NONE; 2],
        };
        self.path.iter().all(|crossing| self.owners.claim(*crossing, sender as u32, representative))
    }

    /// Adds the bytes that `representative` received over its current path to each link of the path.
    fn count(&mut self, representative: u32) {
        let inbox = &mut self.inbox[representative as usize];
        let bytes = std::mem::take(&mut inbox.uncounted);
        let mut add = |link: u32| {
            let sum = &mut self.run.links[link as usize];
            *sum = sum.saturating_add(bytes);
        };
        if bytes > 0 && inbox.links[0] != NONE {
            inbox.links.into_iter().filter(|&link| link != NONE).for_each(add);
        } else if bytes > 0 {
            self.path.clear();
            self.cast.route(Rank(inbox.source), self.cast.rank(representative), &mut self.path);
            self.path.iter().for_each(|crossing| add(crossing.link.0));
        }
    }

    fn finish(mut self) -> Option<Run> {
        for representative in 0..self.cast.representatives() {
            self.count(representative);
        }
        self.run.finish = self.clocks.iter().map(|clock| Picos(clock.now)).collect();
        self.run.chain = Picos(self.clocks.iter().map(|clock| clock.chain).max().unwrap_or(0));
        self.run.hash = self.hash.value();
        Some(self.run)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AllRanks, Job};
    use super::*;
    use allfold_schedules::Geometry;
    use allfold_schedules::schedule::Schedule;
    use allfold_sim::{BytesPerSec, Costs, Faults, Link, Topology};

    /// An element is one byte; a byte takes 1,000 ps on the link, and the link's latency is 10 ps.
    const LINK: Link = Link { bandwidth: BytesPerSec(1_000_000_000), latency: Picos(10) };

    /// A schedule as a list of messages (round, from, to, chunks, combine), for tests.
    struct Listed(u32, Vec<(u64, u32, u32, u32, Combine)>);

    impl Schedule for Listed {
        fn ranks(&self) -> u32 {
            self.0
        }
        fn chunks(&self) -> u32 {
            8
        }
        fn rounds(&self) -> u64 {
            self.1.iter().map(|message| message.0 + 1).max().unwrap_or(0)
        }
        fn step(&self, Rank(rank): Rank, round: u64) -> Step {
            let mut step = Step::IDLE;
            for &(at, from, to, len, how) in self.1.iter().filter(|message| message.0 == round) {
                assert_eq!(at, round);
                if from == rank {
                    step.send = Some((Rank(to), Span::data(0, len)));
                }
                if to == rank {
                    step.recv = Some((Rank(from), Span::data(0, len), how));
                }
            }
            step
        }
    }

    fn clocks(schedule: &Listed, costs: Costs, topology: &Topology) -> Result<Option<Run>, Error> {
        let geometry = Geometry::whole(schedule, 8);
        let job = Job { costs, ..Job::new(schedule, &geometry, 1, topology) };
        run(&job, &AllRanks::of(topology, &Faults::NONE))
    }

    fn finish(run: &Run) -> Vec<u64> {
        run.finish.iter().map(|picos| picos.0).collect()
    }

    #[test]
    fn a_message_takes_overhead_bytes_latency_and_the_reduction() {
        let costs = Costs {
            overhead: Picos(5),
            launch: Picos(100),
            memory: Some(BytesPerSec(1_000_000_000_000)),
            ..Costs::FREE
        };
        let topology = Topology::switch(3, LINK).unwrap();
        let messages =
            vec![(0, 0, 1, 4, Combine::Reduce), (3, 1, 2, 2, Combine::Copy), (4, 2, 2, 1, Combine::Copy)];
        let run = clocks(&Listed(3, messages), costs, &topology).unwrap().unwrap();
        // Rank 0: 100 + 5 + 4,000. Rank 1: another 20 + 3 x 4, then 5 + 2,000. Rank 2: another 20, then 1 byte read and written.
        assert_eq!(finish(&run), [4_105, 4_137 + 2_005, 4_137 + 2_025 + 2]);
        assert_eq!(run.chain, Picos(100 + 25 + 25));
        assert_eq!((run.messages, run.bytes), (2, 6));
        assert_eq!(run.links, [4, 2, 0, 0, 4, 2]);
    }

    #[test]
    fn both_halves_of_a_step_wait_for_the_later_of_their_ends() {
        let topology = Topology::switch(3, LINK).unwrap();
        // Rank 1 receives 8 bytes from rank 0 before it exchanges data with rank 2.
        let messages =
            vec![(0, 0, 1, 8, Combine::Copy), (1, 1, 2, 1, Combine::Copy), (1, 2, 1, 2, Combine::Copy)];
        let run = clocks(&Listed(3, messages), Costs::FREE, &topology).unwrap().unwrap();
        assert_eq!(finish(&run), [8_000, 8_020 + 2_020, 8_020 + 2_000]);
    }

    #[test]
    fn a_link_with_two_senders_and_two_receivers_needs_a_queue() {
        let topology = Topology::nodes(4, 2, 1, LINK, LINK).unwrap();
        let apart = vec![(0, 0, 2, 1, Combine::Copy), (1, 0, 3, 1, Combine::Copy)];
        assert!(clocks(&Listed(4, apart), Costs::FREE, &topology).unwrap().is_some());
        let shared = vec![(0, 0, 2, 1, Combine::Copy), (0, 1, 3, 1, Combine::Copy)];
        assert!(clocks(&Listed(4, shared), Costs::FREE, &topology).unwrap().is_none());
    }

    #[test]
    fn halves_that_do_not_meet_are_named() {
        let topology = Topology::switch(3, LINK).unwrap();
        struct Torn(bool);
        impl Schedule for Torn {
            fn ranks(&self) -> u32 {
                3
            }
            fn chunks(&self) -> u32 {
                1
            }
            fn rounds(&self) -> u64 {
                2
            }
            fn step(&self, Rank(rank): Rank, round: u64) -> Step {
                let (all, torn) = (Span::data(0, 1), round == 1);
                Step {
                    send: (rank == 1 && (!torn || self.0)).then_some((Rank(2), all)),
                    recv: (rank == 2 && (!torn || !self.0)).then_some((Rank(1), all, Combine::Copy)),
                }
            }
        }
        let error = |schedule: &Torn| {
            let geometry = Geometry::whole(schedule, 8);
            let job = Job::new(schedule, &geometry, 1, &topology);
            run(&job, &AllRanks::of(&topology, &Faults::NONE)).unwrap_err().to_string()
        };
        assert!(error(&Torn(true)).contains("round 1: rank 1 sends to rank 2, which does not receive it"));
        assert!(error(&Torn(false)).contains("round 1: rank 2 waits for rank 1, which does not send to it"));
    }
}
