//! Tests of messages over one link of 1 GB/s with a latency of 5 ns.

use super::*;
use crate::fault::Message;
use crate::{Bytes, BytesPerSec, Costs, Crossing, Faults, Picos, Rank, Sharing, Topology};

const LATENCY: Picos = Picos(5_000);

/// Two ranks of a switch with a direct path between them, under given fault rules.
struct World {
    faults: Faults,
    transit: Transit<()>,
    path: Vec<Crossing>,
    started: u64,
}

impl World {
    fn new(rules: &[&str]) -> World {
        let topology = Topology::named("switch", 2).unwrap();
        let faults = Faults::parse(rules.iter().copied(), &topology).unwrap();
        let links = vec![BytesPerSec(1_000_000_000); topology.links() as usize];
        let path = vec![Crossing { link: crate::LinkId(0), weight: 1 }];
        World { transit: Transit::new(links, 2, &faults, Sharing::Split), faults, path, started: 0 }
    }

    /// Starts a message of 1,000 bytes on channel 0, which flows at once.
    fn start(&mut self, now: Picos) -> u32 {
        let number = self.transit.start(now, 0, Bytes(1_000), ());
        self.started += 1;
        let message =
            Message { from: Rank(0), to: Rank(1), operation: 0, round: self.started, nth: 0, at: now };
        let links = self.path.iter().map(|crossing| crossing.link);
        if let Some(state) = &mut self.transit.faults {
            state.decide(&self.faults, number, message, links);
        }
        self.transit.flow(now, number, &self.path);
        self.transit.settle(&self.faults, now);
        number
    }

    /// The next message that leaves: when, its number, and what follows.
    fn leave(&mut self) -> (Picos, u32, Leaving) {
        let now = self.transit.next(&self.faults, None).unwrap();
        let mut through = Vec::new();
        self.transit.network.take_finished(now, &mut through);
        self.transit.settle(&self.faults, now);
        let number = self.transit.carried(through[0]);
        (now, number, self.transit.leave(now, number, (LATENCY, None), &Costs::FREE, &self.faults))
    }
}

#[test]
fn a_message_arrives_a_latency_after_its_last_byte() {
    let mut world = World::new(&[]);
    assert!(world.transit.faults.is_none(), "no rules, no state");
    let number = world.start(Picos(7));
    let leaving = Leaving { arrives: Some(Picos(1_005_007)), copied: false };
    assert_eq!(world.leave(), (Picos(1_000_007), number, leaving));
    world.transit.release(number);
    assert_eq!(world.start(Picos(2_000_000)), number, "numbers are used again");
}

#[test]
fn messages_of_a_channel_arrive_in_order_though_one_is_late() {
    let mut world = World::new(&["delay=0>1:#1:+10us"]);
    world.start(Picos::ZERO);
    let (left, _, first) = world.leave();
    assert_eq!(first.arrives, Some(left + LATENCY + Picos::from_micros(10)));
    world.start(left);
    let (_, _, second) = world.leave();
    assert_eq!(second.arrives, first.arrives, "no sooner than the one before it");
}

#[test]
fn a_dropped_message_leaves_and_never_arrives() {
    let mut world = World::new(&["drop=0>1:#1"]);
    let number = world.start(Picos::ZERO);
    let (left, _, leaving) = world.leave();
    assert_eq!((left, leaving.arrives), (Picos::from_micros(1), None));
    assert!(world.transit.faults.as_ref().unwrap().message(number).left);
}

#[test]
fn a_duplicated_message_takes_its_links_twice() {
    let mut world = World::new(&["duplicate=0>1:#1"]);
    let number = world.start(Picos::ZERO);
    let (left, _, leaving) = world.leave();
    assert!(leaving.copied && leaving.arrives.is_some());
    let path = world.path.clone();
    world.transit.copy(left, number, (), &path);
    world.transit.settle(&world.faults, left);
    let (again, copy, _) = world.leave();
    assert_eq!(again, left + left);
    assert!(world.transit.ends_copy(copy) && !world.transit.ends_copy(number));
}

#[test]
fn a_death_stops_the_messages_that_it_cuts_off() {
    let mut world = World::new(&["dead_rank=1@300ns"]);
    world.start(Picos::ZERO);
    assert_eq!(world.faults.deaths_by_clock(2).collect::<Vec<_>>(), [(Rank(1), Picos::from_nanos(300))]);
    world.transit.die(Rank(1), Picos::from_nanos(300), |transit, channel| {
        channel == 0 && transit.is_dead(Rank(1)) && !transit.is_dead(Rank(0))
    });
    world.transit.settle(&world.faults, Picos::from_nanos(300));
    assert!(!world.transit.network.has_flows());
    assert_eq!(world.transit.next(&world.faults, None), None);
}

#[test]
fn a_link_that_is_cut_holds_its_flow_until_it_heals() {
    let mut world = World::new(&["cut=0>1@0us..20us"]);
    let gate = crate::LinkId(world.transit.network.links() as u32 - 1);
    world.path.push(Crossing { link: gate, weight: 1 });
    world.start(Picos::ZERO);
    let heals = world.transit.next(&world.faults, None);
    assert_eq!(heals, Some(Picos::from_micros(20)));
    world.transit.settle(&world.faults, Picos::from_micros(20));
    assert_eq!(world.leave().0, Picos::from_micros(21));
}
