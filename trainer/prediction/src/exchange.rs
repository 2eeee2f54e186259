//! The time of an all-reduce among the ranks.

use allfold_collectives::time::{Engine, Job, Outcome, simulate};
use allfold_collectives::{Collective, DType, Plan};
use allfold_nccl_model::{Overrides, Platform, choose};
use allfold_sim::{Costs, Faults, Picos, Sharing, Topology};
use allfold_trainer::Result;
use std::collections::{BTreeMap, BTreeSet};

/// Times an all-reduce from the moment all ranks have entered it.
pub trait ExchangeModel {
    /// The time of an all-reduce of this many elements.
    ///
    /// # Errors
    /// A schedule that cannot be timed.
    fn all_reduce(&mut self, elements: usize, dtype: DType) -> Result<Picos>;

    /// The engines used so far, each once.
    fn engines(&self) -> Vec<String>;
}

/// Above this number of ranks, unequal chunks are rounded up, so that one rank of each symmetry class suffices.
const STEPPED: u32 = 1024;

/// A communicator's own schedule, simulated on the topology.
pub struct SimulatedExchange<'a> {
    topology: &'a Topology,
    costs: Costs,
    sharing: Sharing,
    plan: &'a Plan,
    known: BTreeMap<(usize, usize), Picos>,
    engines: BTreeSet<String>,
}

impl<'a> SimulatedExchange<'a> {
    /// Simulates the schedules of a communicator with this plan.
    pub fn new(
        topology: &'a Topology,
        costs: Costs,
        sharing: Sharing,
        plan: &'a Plan,
    ) -> SimulatedExchange<'a> {
        SimulatedExchange { topology, costs, sharing, plan, known: BTreeMap::new(), engines: BTreeSet::new() }
    }
}

impl ExchangeModel for SimulatedExchange<'_> {
    fn all_reduce(&mut self, elements: usize, dtype: DType) -> Result<Picos> {
        if let Some(&known) = self.known.get(&(elements, dtype.size())) {
            return Ok(known);
        }
        let prepared = self.plan.of(Collective::AllReduce, self.topology.ranks(), elements, dtype)?;
        let job = Job {
            schedule: &*prepared.schedule,
            geometry: &prepared.geometry,
            element: dtype.size() as u32,
            topology: self.topology,
            costs: self.costs,
            window: prepared.window,
            sharing: self.sharing.into(),
            faults: &Faults::NONE,
            deadline: None,
            collective: Some(Collective::AllReduce),
        };
        let by_symmetry: Option<Outcome> = (self.topology.ranks() > STEPPED)
            .then(|| simulate(&job, Engine::BySymmetryRounded).ok())
            .flatten();
        let outcome = match by_symmetry {
            Some(outcome) => outcome,
            None => simulate(&job, Engine::Auto)?,
        };
        let rounded = if outcome.rounded.is_some() { ", chunks rounded up" } else { "" };
        self.engines.insert(format!("{}{rounded}", outcome.method.name()));
        self.known.insert((elements, dtype.size()), outcome.time);
        Ok(outcome.time)
    }

    fn engines(&self) -> Vec<String> {
        self.engines.iter().cloned().collect()
    }
}

/// The time that NCCL's own tuner estimates for the algorithm it chooses.
pub struct NcclModel {
    platform: Platform,
    overrides: Overrides,
    used: BTreeSet<String>,
}

impl NcclModel {
    /// NCCL's model for this machine; `overrides` are the settings of `NCCL_ALGO` and `NCCL_PROTO`.
    pub fn new(platform: Platform, overrides: Overrides) -> NcclModel {
        NcclModel { platform, overrides, used: BTreeSet::new() }
    }
}

impl ExchangeModel for NcclModel {
    fn all_reduce(&mut self, elements: usize, dtype: DType) -> Result<Picos> {
        let bytes = (elements * dtype.size()) as u64;
        let chosen = choose(&self.platform, Collective::AllReduce, bytes, &self.overrides)
            .map_err(|error| allfold_trainer::Error::Config(error.to_string()))?;
        self.used.insert(format!("NCCL's model, {} {}", chosen.algorithm.name(), chosen.protocol.name()));
        Ok(Picos((chosen.time_us * 1e6).ceil() as u64))
    }

    fn engines(&self) -> Vec<String> {
        self.used.iter().cloned().collect()
    }
}
