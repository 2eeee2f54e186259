//! The critical path of a timed collective, from the last rank's end back to the first launch, and what its time consists of.
//!
//! ```text
//! launch |--overhead--|==bytes alone==|~~sharing~~|..latency..|--overhead--|==.. ... ..latency..|reduce| end
//!        '------------- rank 3 to 4 --------------------------'            the next hop starts when this one has arrived
//! ```
//!
//! A message starts when its sender and its receiver have posted it and its channel is free. The message waited for the event that ended
//! at that very time, so the walk back from the end needs no information about the schedule: each interval belongs to one message or to a
//! rank's own work. The parts add up to the whole time, to the picosecond. What fault rules add to any of them is a part of its own.

use super::{Error, Job, Sent, traced};
use allfold_schedules::schedule::Rank;
use allfold_sim::{Bytes, Link, LinkId, Picos};
use std::collections::BTreeMap;

/// The parts of a collective's time, which add up to the whole time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Launches: the time until the first message of the critical path.
    pub launch: Picos,
    /// The senders' overhead on messages, before the first byte.
    pub overhead: Picos,
    /// Transfer of bytes at the full rate of the slowest link of their path.
    pub bandwidth: Picos,
    /// The additional time of the bytes because links were shared.
    pub sharing: Picos,
    /// The time from the last byte to the arrival: the links' latency.
    pub latency: Picos,
    /// Reductions, and local moves within a rank.
    pub memory: Picos,
    /// What fault rules add: slower ranks and links, delays, links that are down, ranks that are stopped or cut off.
    pub faults: Picos,
}

/// A message on the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The message, with its times.
    pub sent: Sent,
    /// The message's share of the whole time.
    pub took: Picos,
}

/// The use of a link during a collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkUse {
    /// The number of the link.
    pub link: LinkId,
    /// The bytes that crossed the link.
    pub bytes: Bytes,
    /// The utilisation of the link over the whole time, from 0 to 1.
    pub share: f64,
}

/// The parts and the critical path of a collective's time.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The whole time.
    pub time: Picos,
    /// The parts that the time consists of.
    pub parts: Parts,
    /// The critical path, first message first.
    pub path: Vec<Hop>,
    /// The time on the critical path of the messages between each pair (sender, receiver), longest first.
    pub pairs: Vec<(Rank, Rank, Picos)>,
    /// All links, the busiest first.
    pub links: Vec<LinkUse>,
    /// All messages, in order of arrival.
    pub messages: Vec<Sent>,
}

/// Times a job with every rank stepped, and finds its critical path. Stores every message in memory.
///
/// # Errors
/// The errors of [`super::simulate`].
pub fn explain(job: &Job<'_>) -> Result<Explanation, Error> {
    let mut messages = Vec::new();
    let outcome = traced(job, &mut |sent| messages.push(*sent))?;
    let mut walk = Walk { job, ends: Walk::ends(&messages), messages: &messages, parts: Parts::default() };
    let path = walk.back(outcome.time);
    let parts = walk.parts;
    let mut pairs: BTreeMap<(Rank, Rank), Picos> = BTreeMap::new();
    for hop in &path {
        *pairs.entry((hop.sent.from, hop.sent.to)).or_default() += hop.took;
    }
    let mut pairs: Vec<_> = pairs.into_iter().map(|((from, to), took)| (from, to, took)).collect();
    pairs.sort_by_key(|&(from, to, took)| (std::cmp::Reverse(took), from, to));
    let used = |(link, bytes): (u32, &Bytes)| {
        let link = LinkId(link);
        let rate = job.faults.link(link, job.topology.link(link)).bandwidth;
        let share = bytes.0 as f64 / (rate.0 as f64 * outcome.time.as_secs()).max(1e-30);
        LinkUse { link, bytes: *bytes, share }
    };
    let mut links: Vec<LinkUse> = (0u32..).zip(&outcome.links).map(used).collect();
    links.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.link.cmp(&b.link)));
    Ok(Explanation { time: outcome.time, parts, path, pairs, links, messages })
}

/// The walk back along the critical path.
struct Walk<'a> {
    job: &'a Job<'a>,
    messages: &'a [Sent],
    /// For each rank, in order of time: when a message ended there, whether it arrived (otherwise it left), and its number.
    ends: Vec<Vec<(u64, bool, u32)>>,
    parts: Parts,
}

impl Walk<'_> {
    fn ends(messages: &[Sent]) -> Vec<Vec<(u64, bool, u32)>> {
        let ranks = messages.iter().map(|sent| sent.from.0.max(sent.to.0) + 1).max().unwrap_or(0);
        let mut ends = vec![Vec::new(); ranks as usize];
        for (number, sent) in (0u32..).zip(messages) {
            ends[sent.to.index()].push((sent.arrived.0, true, number));
            ends[sent.from.index()].push((sent.left.0, false, number));
        }
        ends.iter_mut().for_each(|of: &mut Vec<_>| of.sort_unstable());
        ends
    }

    /// The last message end on a rank up to time `by`; of several at the same time, an arrival takes precedence over a departure.
    fn last(&self, rank: Rank, by: u64) -> Option<(u64, bool, u32)> {
        let ends = self.ends.get(rank.index())?;
        ends[..ends.partition_point(|end| end.0 <= by)].last().copied()
    }

    fn back(&mut self, time: Picos) -> Vec<Hop> {
        let mut path = Vec::new();
        let ranks = (0..self.ends.len() as u32).map(Rank);
        let mut at = time.0;
        let mut next = ranks.filter_map(|rank| self.last(rank, at)).max();
        while let Some((end, arrived, number)) = next {
            let sent = self.messages[number as usize];
            let rank = if arrived { sent.to } else { sent.from };
            self.work(rank, Picos(end), Picos(at));
            self.charge(&sent, arrived);
            path.push(Hop { sent, took: Picos(end) - sent.start });
            at = sent.start.0;
            let before = |end: &(u64, bool, u32)| end.2 != number;
            let of = |rank| self.last(rank, at).filter(before);
            // If the waits of both ranks ended at the same time, the walk follows the sender's.
            next = match (of(sent.from), of(sent.to)) {
                (Some(from), Some(to)) => Some(if to.0 > from.0 { to } else { from }),
                (from, to) => from.or(to),
            };
            // A rank that launches late is waited for longer than any message.
            let launched = self.job.launched(sent.from).later(self.job.launched(sent.to)).0;
            if path.len() > self.messages.len()
                || next.is_some_and(|(end, ..)| end < launched && launched <= at)
            {
                break;
            }
        }
        let launch = self.expected(self.job.costs.launch, Picos(at));
        self.parts.launch += launch;
        self.parts.faults += Picos(at) - launch;
        path.reverse();
        path
    }

    /// What a span of `took` would have been without faults, if `bare` is what it then takes at most.
    fn expected(&self, bare: Picos, took: Picos) -> Picos {
        if self.job.faults.is_empty() { took } else { bare.min(took) }
    }

    /// Adds a rank's own work between two messages: a local move in memory, and what faults add to it.
    fn work(&mut self, rank: Rank, start: Picos, end: Picos) {
        let (faults, took) = (self.job.faults, end - start);
        let slowness = faults.slowness(rank);
        // The longest work that is done in this time.
        let (mut least, mut most) = (0, took.0);
        while least < most && !faults.is_empty() {
            let middle = least + (most - least).div_ceil(2);
            let fits = faults.takes(rank, start, slowness.of(Picos(middle))) <= took;
            (least, most) = if fits { (middle, most) } else { (least, middle - 1) };
        }
        self.parts.memory += Picos(most);
        self.parts.faults += took - Picos(most);
    }

    /// Adds one message's time to the parts: up to its arrival if `arrived`, else up to its last byte.
    fn charge(&mut self, sent: &Sent, arrived: bool) {
        let Job { topology, faults, costs, .. } = *self.job;
        let mut path: Vec<LinkId> = Vec::new();
        topology.route(sent.from, sent.to, &mut path);
        let bare: Vec<Link> = path.iter().map(|link| topology.link(*link)).collect();
        let links: Vec<Link> = path.iter().zip(&bare).map(|(id, link)| faults.link(*id, *link)).collect();
        let bytes =
            |of: &[Link]| of.iter().map(|link| link.bandwidth.time(sent.bytes)).max().unwrap_or_default();
        let flight = |of: &[Link]| of.iter().fold(Picos::ZERO, |sum, link| sum + link.latency);

        let whole = sent.left - sent.start;
        let overhead = costs.overhead.min(whole);
        let alone = bytes(&bare).min(whole - overhead);
        let slower =
            (self.job.costs_of(sent.from).overhead - costs.overhead) + (bytes(&links) - bytes(&bare));
        let more = whole - overhead - alone;
        let by_faults = (slower + self.held_up(sent, &path, &links)).min(more);
        self.parts.overhead += overhead;
        self.parts.bandwidth += alone;
        self.parts.sharing += more - by_faults;
        self.parts.faults += by_faults;
        if arrived {
            let whole = sent.arrived - sent.left;
            let own = self.job.costs_of(sent.to).reduce(sent.bytes).min(whole - flight(&links).min(whole));
            let memory = self.expected(costs.reduce(sent.bytes), own);
            let latency = self.expected(flight(&bare), whole - own);
            self.parts.memory += memory;
            self.parts.latency += latency;
            self.parts.faults += whole - memory - latency;
        }
    }

    /// The time that a message's bytes lose while ranks are cut off, or links of its path are slower than usual or down: all of the time
    /// in which nothing passes, and a half of it where the rate is half of the usual one.
    fn held_up(&self, sent: &Sent, path: &[LinkId], links: &[Link]) -> Picos {
        let faults = self.job.faults;
        let usual = links.iter().map(|link| link.bandwidth.0).min().unwrap_or(u64::MAX).max(1);
        let (mut at, mut lost) = (sent.start, Picos::ZERO);
        while at < sent.left && !faults.is_empty() {
            let until = faults.change(at).unwrap_or(sent.left).min(sent.left);
            let rates = path.iter().zip(links).map(|(id, link)| faults.bandwidth(*id, link.bandwidth, at).0);
            let open = !faults.is_partitioned(sent.from, sent.to, at);
            let rate = if open { rates.min().unwrap_or(usual).min(usual) } else { 0 };
            let span = u128::from((until - at).0);
            lost += Picos((span - span * u128::from(rate) / u128::from(usual)) as u64);
            at = until;
        }
        lost
    }
}

impl Parts {
    /// The parts with their names, in the order in which a message has them.
    pub fn named(&self) -> [(&'static str, Picos); 7] {
        [
            ("launch", self.launch),
            ("overhead", self.overhead),
            ("bandwidth", self.bandwidth),
            ("sharing", self.sharing),
            ("latency", self.latency),
            ("memory", self.memory),
            ("faults", self.faults),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_schedules::algorithms::{RingAllReduce, double_binary_tree};
    use allfold_schedules::schedule::{Segments, then_reverse};
    use allfold_schedules::{Geometry, schedule::Schedule};
    use allfold_sim::{Costs, Faults, Topology};

    fn explained(schedule: &dyn Schedule, window: u32, topology: &Topology, rules: &[&str]) -> Explanation {
        let geometry = Geometry::whole(schedule, 960_000);
        let faults = Faults::parse(rules.iter().copied(), topology).unwrap();
        let job = Job { window, faults: &faults, ..Job::new(schedule, &geometry, 4, topology) };
        let explanation = explain(&job).unwrap();
        let sum: u64 = explanation.parts.named().iter().map(|(_, part)| part.0).sum();
        assert_eq!(sum, explanation.time.0, "the parts add up: {:?}", explanation.parts);
        explanation
    }

    #[test]
    fn a_ring_alone_on_a_switch_is_launch_bandwidth_and_latency() {
        let topology = Topology::named("switch", 4).unwrap();
        let explanation = explained(&RingAllReduce(4), 1, &topology, &[]);
        let Parts { launch, overhead, bandwidth, sharing, latency, memory, faults } = explanation.parts;
        assert_eq!(launch, Costs::default().launch);
        // Six rounds of 960 kB at 300 GB/s, each with a latency of 2 x 0.6 us.
        assert_eq!((bandwidth, latency), (Picos::from_nanos(6 * 3_200), Picos::from_nanos(6 * 1_200)));
        assert_eq!([overhead, sharing, memory, faults], [Picos::ZERO; 4]);
        assert_eq!(explanation.path.len(), 6);
        assert!(explanation.path.windows(2).all(|two| two[0].sent.to == two[1].sent.from));
    }

    #[test]
    fn a_slow_link_is_where_the_time_goes() {
        let topology = Topology::named("switch", 4).unwrap();
        let explanation = explained(&RingAllReduce(4), 1, &topology, &["slow_link=up[2]:x20"]);
        let (from, to, took) = explanation.pairs[0];
        assert_eq!((from, to), (Rank(2), Rank(3)));
        assert!(took.0 > explanation.time.0 / 2);
        assert_eq!(topology.link_name(explanation.links[0].link), "up[2]");
        assert!(explanation.links[0].share > 0.9 && explanation.links[1].share < 0.1);
    }

    #[test]
    fn the_parts_of_a_pipeline_with_trouble_add_up_too() {
        let schedule = Segments::new(double_binary_tree(9, Rank(0), then_reverse), 12);
        let topology = Topology::named("nodes4", 9).unwrap();
        for rules in [&[][..], &["flap=nic_out[0]:20us/50us"], &["jitter_link=*:exp(3us)", "slow_rank=4:x3"]]
        {
            let explanation = explained(&schedule, 16, &topology, rules);
            assert!(explanation.parts.sharing > Picos::ZERO);
            assert_eq!(explanation.parts.faults > Picos::ZERO, !rules.is_empty(), "{rules:?}");
            assert!(explanation.links.iter().all(|link| link.share <= 1.0));
        }
    }

    /// What a fault adds is a part of its own: nothing shares a link in a ring, and no rank has work in memory.
    #[test]
    fn what_a_fault_adds_is_neither_sharing_nor_memory() {
        let topology = Topology::named("switch", 4).unwrap();
        let without = explained(&RingAllReduce(4), 1, &topology, &[]);
        for rule in [
            "stop_rank=3@10us..2ms",
            "partition=0,1|2,3@10us..2ms",
            "flap=up[2]:10us/20us",
            "slow_link=up[2]:x20",
            "slow_link=up[2]:x20@10us..1ms",
            "slow_link=up[2]:+30us",
            "slow_rank=3:x100",
            "stop_rank=3@1us..2ms",
            "delay=2>3:all:+20us",
        ] {
            let Explanation { time, parts, .. } = explained(&RingAllReduce(4), 1, &topology, &[rule]);
            assert_eq!((parts.sharing, parts.memory), (Picos::ZERO, Picos::ZERO), "{rule}: {parts:?}");
            // A message that waits for a late one takes no longer itself, so that the other parts are those without the fault.
            assert!(parts.faults.0 > 0 && parts.faults >= time - without.time, "{rule}: {parts:?}");
            assert!(parts.launch <= without.parts.launch, "{rule}: {parts:?}");
        }
    }
}
