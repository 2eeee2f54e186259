//! A step of a parameter server on the clock: each rank is on a thread, in a world on virtual time that carries messages without contents.

use crate::clock::{ServingLinks, Shared, StepRules};
use crate::meetings::Meetings;
use crate::step::{Drivers, RankClass, RankStep, prediction, steps};
use crate::{ModeledMachine, SimulatedExchange, StepPrediction};
use allfold_collectives::World;
use allfold_trainer::engine::Mesh;
use allfold_trainer::{Error, Result};
use std::sync::Mutex;

/// The most ranks of a parameter server that are predicted: each is a thread or two.
pub const MOST_SERVED: u32 = 256;

/// Times a step of the servers and workers of `mesh`.
///
/// # Errors
/// Too many ranks; what the strategy or the machine does not take.
pub(crate) fn step<'a>(
    (class_of, rules, mesh): (&(dyn Fn(usize) -> RankClass<'a> + Sync), StepRules, Mesh),
    drivers: Drivers,
    machine: &ModeledMachine,
) -> Result<StepPrediction> {
    if mesh.ranks() > MOST_SERVED as usize {
        return Err(Error::Config(format!(
            "every message between servers and workers is simulated, for {MOST_SERVED} ranks at most, and there are {}; use fewer ranks",
            mesh.ranks()
        )));
    }
    let outline = class_of(0).costs.outline();
    let ranks: Vec<usize> = (0..mesh.ranks()).collect();
    let specs = ranks.iter().map(|rank| drivers(*rank)?.units(&outline)).collect::<Result<Vec<_>>>()?;
    let meetings = Meetings::new(ranks.len());
    let mut unused = SimulatedExchange::new(machine.topology, machine.costs, machine.sharing, machine.plan);
    let exchange: Mutex<&mut dyn crate::ExchangeModel> = Mutex::new(&mut unused);
    let world = World::sim(machine.topology).costs(machine.costs).sharing(machine.sharing);
    let done: Vec<RankStep> = world.run(|comm| {
        let comm = comm.with_plan(*machine.plan);
        let number = comm.rank().index();
        let RankClass { costs, batch } = class_of(number);
        let (ranks, specs, meetings, exchange) = (&ranks[..], &specs[..], &meetings, &exchange);
        let with = Shared { costs, batch, rules, mesh, ranks, specs, meetings, exchange };
        let links = ServingLinks::new(comm, &mesh, specs[number].len())?;
        steps(with, number, drivers, Some(links))
    })?;
    prediction(done, (class_of, mesh), vec!["messages on virtual time".into()])
}
