//! The algorithm proved, simulated and run.

use allfold_collectives::{Error, World, testing};
use allfold_schedules::registry::{self, Algorithm, Shape};
use allfold_schedules::{Collective, Geometry};
use allfold_sim::Topology;
use allfold_timing::{Engine, Job, simulate};
use own_algorithm::ALGORITHMS;

static OWN: &Algorithm = &ALGORITHMS[0];

#[test]
fn it_is_proved_for_every_number_of_ranks() {
    (1..=64).try_for_each(|ranks| testing::proves(OWN, ranks)).unwrap();
}

#[test]
fn it_conforms_on_real_data() {
    testing::conforms(OWN).unwrap();
}

#[test]
fn it_gathers_between_threads() {
    let all = World::threads(6).with(OWN).run(|comm| {
        let rank = comm.rank().0 as i32;
        let mut blocks = [0i32; 6];
        comm.all_gather(&[rank * rank], &mut blocks)?;
        Ok::<_, Error>(blocks)
    });
    assert_eq!(all.unwrap(), [[0, 1, 4, 9, 16, 25]; 6]);
}

/// On small blocks a round costs one message's latency: half of the rounds take about half of the time. The fixed cost of a call
/// makes it a little more.
#[test]
fn it_takes_half_of_a_rings_time_on_small_blocks() {
    let ranks = 64;
    let topology = Topology::named("switch", ranks).unwrap();
    let time = |algorithm: &Algorithm| {
        let schedule = algorithm.build(Shape::new(ranks).unwrap()).unwrap();
        // One element of 8 bytes per rank.
        let geometry = Geometry::blocked(&schedule, 1);
        simulate(&Job::new(&schedule, &geometry, 8, &topology), Engine::Auto).unwrap().time.as_micros()
    };
    let (own, ring) = (time(OWN), time(registry::find(Collective::AllGather, "ring").unwrap()));
    let ratio = own / ring;
    println!("{own:.1} us, a ring {ring:.1} us: {ratio:.3}");
    assert!((0.5..0.6).contains(&ratio), "{own} {ring}");
}
