//! The timing tests of the algorithm table, for use with algorithms of other crates.
//!
//! ```
//! use allfold_schedules::algorithms::RingAllReduce;
//! use allfold_schedules::{Collective, registry::Algorithm};
//! use allfold_timing::testing;
//! use std::sync::Arc;
//!
//! static MINE: Algorithm = Algorithm::new(Collective::AllReduce, "mine", "a ring", |shape| {
//!     Arc::new(RingAllReduce(shape.ranks()))
//! });
//!
//! [1, 2, 3, 8].into_iter().try_for_each(|ranks| testing::times(&MINE, ranks)).unwrap();
//! ```

use crate::{Engine, Job, simulate};
use allfold_schedules::Geometry;
use allfold_schedules::registry::{Algorithm, Shape};
use allfold_schedules::schedule::{Lanes, Schedule, Segments};
use allfold_schedules::testing::ConformanceFailure;
use allfold_sim::Topology;
use std::sync::Arc;

/// Times an algorithm on a switch and on nodes of 8, plain, in segments and in lanes, with windows of 1 and 8. Every engine that
/// applies must give the same time, and no time may beat a bound. A number of ranks that the algorithm does not take is skipped.
///
/// # Errors
/// An error of the simulator, or two engines that differ.
pub fn times(algorithm: &Algorithm, ranks: u32) -> Result<(), ConformanceFailure> {
    if !algorithm.takes(ranks) {
        return Ok(());
    }
    let fail = |error: &dyn ToString| ConformanceFailure::new(algorithm, ranks, error.to_string());
    let plain = Shape::new(ranks).and_then(|shape| algorithm.build(shape)).map_err(|error| fail(&error))?;
    let cut: Arc<dyn Schedule> = Arc::new(Segments::new(plain.clone(), 4));
    let laned: Arc<dyn Schedule> = Arc::new(Lanes::split(plain.clone(), 2));
    for schedule in [plain, cut, laned] {
        for topology in ["switch", "nodes8"] {
            let topology = Topology::named(topology, ranks).map_err(|error| fail(&error))?;
            for (count, window) in [(0, 1), (1009, 1), (64 * u64::from(ranks), 8)] {
                let geometry = match algorithm.collective.blocked() {
                    true => Geometry::blocked(&schedule, count),
                    false => Geometry::whole(&schedule, count),
                };
                let job = Job::new(&schedule, &geometry, 4, &topology);
                let job = Job { window, collective: Some(algorithm.collective), ..job };
                let time = |engine| simulate(&job, engine).map(|outcome| outcome.time).map_err(|e| fail(&e));
                let (full, auto, events) = (time(Engine::Full)?, time(Engine::Auto)?, time(Engine::Events)?);
                if full != auto || full != events {
                    let what = format!("{count} elements, window {window}: {full:?}, {auto:?}, {events:?}");
                    return Err(fail(&format!("engines differ on {}, {what}", topology.name())));
                }
            }
        }
    }
    Ok(())
}
