#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! Real results: every algorithm on every backend against an exactly ordered reference, bit for bit.

use allfold_collectives::time::{Engine, Job, simulate};
use allfold_collectives::{Collective, Communicator, Error, Geometry, ReduceOp, World, registry};
use allfold_sim::{Costs, Topology};

#[test]
fn the_virtual_finish_is_what_the_time_only_engines_say() {
    for name in ["switch", "ring", "mesh", "nodes8x1"] {
        for ranks in [2, 3, 8, 13] {
            let topology = Topology::named(name, ranks).unwrap();
            for algorithm in registry::of(Collective::AllReduce) {
                let count = 10_007;
                let world = World::sim(&topology).algorithm(Collective::AllReduce, algorithm.name);
                let report = world
                    .run_each(|comm: Communicator| -> Result<(), Error> {
                        comm.all_reduce(&mut vec![1f32; count], ReduceOp::Sum)
                    })
                    .unwrap();
                report.ranks.into_iter().for_each(|result| result.unwrap());
                let schedule = algorithm.build(registry::Shape::new(ranks).unwrap());
                let geometry = Geometry::whole(&schedule, count as u64);
                let job = Job {
                    costs: Costs::default(),
                    window: algorithm.window(),
                    ..Job::new(&*schedule, &geometry, 4, &topology)
                };
                let outcome = simulate(&job, Engine::Full).unwrap();
                assert_eq!(report.finish, outcome.finish, "{} on {name} over {ranks}", algorithm.name);
            }
        }
    }
}
