//! A step on the clock in which every rank is stepped, each on a thread, in a world on virtual time that carries messages without
//! contents. Such a step is used if exchanges of several communicators, which share links, are under way at once.

use crate::ModeledMachine;
use crate::clock::{Exchanges, Shared, StepRules, WorldLinks};
use crate::step::{Drivers, RankClass, SteppedRank, steps};
use allfold_collectives::flight::Entry;
use allfold_collectives::{Activity, World};
use allfold_trainer::engine::Mesh;
use allfold_trainer::{Error, Result};

/// The most ranks of a parameter server that are predicted: each rank takes one or two threads.
pub const MOST_SERVED: u32 = 256;

/// The most ranks of another strategy of which every message is simulated. Beyond, one rank of each kind is stepped, and exchanges that
/// are under way at once do not slow each other.
pub const MOST_LINKED: u32 = 32;

/// Whether every rank and message of this mesh is simulated: with servers, and of up to [`MOST_LINKED`] ranks, which may leave an
/// exchange at different times and whose exchanges may be under way at once.
pub(crate) fn is_linked(mesh: &Mesh) -> bool {
    mesh.servers > 0 || (2..=MOST_LINKED as usize).contains(&mesh.ranks())
}

/// A step of which every rank was predicted, with every message.
#[derive(Clone, Debug, Default)]
pub struct EveryRank {
    /// Each rank.
    pub ranks: Vec<SteppedRank>,
    /// What each rank calls in the last step, as far as its flight recorder keeps it.
    pub operations: Vec<Vec<Entry>>,
    /// What each rank communicates, in all steps up to the last one.
    pub timeline: Vec<Activity>,
}

/// Times a step of all ranks of `mesh`, of whose communicators `channels` carry messages; `observed` with what each communicates.
///
/// # Errors
/// Too many ranks; what the strategy or the machine does not take.
pub(crate) fn step<'a>(
    (class_of, rules, mesh): (&(dyn Fn(usize) -> RankClass<'a> + Sync), StepRules, Mesh),
    (channels, drivers): (usize, Drivers),
    machine: &ModeledMachine,
    observed: bool,
) -> Result<EveryRank> {
    if mesh.ranks() > MOST_SERVED as usize {
        return Err(Error::Config(format!(
            "every message is simulated, for {MOST_SERVED} ranks at most, and there are {}; use fewer ranks",
            mesh.ranks()
        )));
    }
    let ranks: Vec<usize> = (0..mesh.ranks()).collect();
    let units = |rank: &usize| drivers(*rank)?.units(&class_of(*rank).costs.outline());
    let specs = ranks.iter().map(units).collect::<Result<Vec<_>>>()?;
    let world = World::sim(machine.topology).costs(machine.costs).sharing(machine.sharing);
    let world = if observed { world.timeline() } else { world };
    let mut done = world.run_each(|comm| {
        let comm = comm.with_plan(*machine.plan);
        let number = comm.rank().index();
        let RankClass { costs, batch } = class_of(number);
        let with = Shared { costs, batch, rules, mesh, ranks: &ranks, specs: &specs };
        let links = WorldLinks::new(&comm, (mesh, channels), &specs[number])?;
        let stepped = steps(with, number, drivers, Exchanges::Links(Box::new(links)))?;
        let of_step = |entries: Vec<Entry>| {
            let last = entries.iter().filter_map(|entry| entry.step).max();
            entries.into_iter().filter(|entry| entry.step == last).collect()
        };
        let operations = if observed { of_step(comm.flight_record(None).entries) } else { Vec::new() };
        Ok::<_, Error>((stepped, operations))
    })?;
    let timeline = std::mem::take(&mut done.timeline);
    let (ranks, operations) = done.results()?.into_iter().unzip();
    Ok(EveryRank { ranks, operations, timeline })
}
