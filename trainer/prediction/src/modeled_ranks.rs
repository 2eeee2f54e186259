//! The ranks of a configuration on the clock: what each of them computes, and how they are stepped.

use crate::clock::StepRules;
use crate::linked_step::{self, EveryRank};
use crate::network::NetworkCosts;
use crate::step::{RankClass, prediction, unlike_step};
use crate::{ExchangeModel, MeasuredTimes, ModeledMachine, NcclModel, SimulatedExchange, StepPrediction};
use allfold_kernels::nn::Float;
use allfold_sim::{Device, Rank};
use allfold_trainer::engine::{Mesh, MeshAxis};
use allfold_trainer::strategies::{self, Driver, EnginePlan};
use allfold_trainer::{Config, Result, SampleForm, optim, shares};

/// The ranks of a configuration, on a machine.
pub(crate) struct ModeledRanks<'a, F: Float> {
    config: &'a Config,
    machine: &'a ModeledMachine<'a>,
    mesh: Mesh,
    /// The number of communicators that carry messages.
    channels: usize,
    /// Whether every rank is stepped, with every message.
    every_rank: bool,
    /// Whether positions on the tensor axis have costs of their own.
    has_parts: bool,
    /// The costs of each kind of rank.
    costs: Vec<NetworkCosts<'a, F>>,
}

impl<'a, F: Float> ModeledRanks<'a, F> {
    /// The ranks of `config` over samples of a form; `times` are measured times of passes, if
    /// there are any. Every rank is stepped if `all` is set, or if exchanges share links.
    pub fn new(
        (config, times): (&'a Config, Option<MeasuredTimes<'a>>),
        samples: SampleForm,
        machine: &'a ModeledMachine<'a>,
        all: bool,
    ) -> Result<ModeledRanks<'a, F>> {
        let EnginePlan { mesh, channels, .. } = strategies::plan(config, 0, machine.topology.ranks())?;
        let first = *machine.devices.device(Rank(0), &machine.device);
        let first = NetworkCosts::new((config, times), samples, &mesh, (first, None))?;
        // What passes between a rank and its server is messages, which are no collectives of NCCL.
        let is_linked = match machine.nccl {
            Some(_) => mesh.servers > 0,
            None => linked_step::is_linked(&mesh),
        };
        let every_rank = all || is_linked;
        let has_parts = every_rank && mesh.tensor > 1;
        let costs = vec![first];
        let mut ranks = ModeledRanks { config, machine, mesh, channels, every_rank, has_parts, costs };
        for rank in 0..mesh.ranks() {
            let kind = ranks.kind(rank);
            if ranks.costs.iter().all(|costs| (costs.device, costs.part) != kind) {
                ranks.costs.push(NetworkCosts::new((config, times), samples, &mesh, kind)?);
            }
        }
        Ok(ranks)
    }

    /// The device of a rank and, if positions have costs of their own, its position on the tensor axis.
    fn kind(&self, rank: usize) -> (Device, Option<usize>) {
        let device = *self.machine.devices.device(Rank(rank as u32), &self.machine.device);
        (device, self.has_parts.then(|| self.mesh.position(rank, MeshAxis::Tensor).index))
    }

    fn class(&self, rank: usize) -> RankClass<'_> {
        let kind = self.kind(rank);
        let own = self.costs.iter().find(|costs| (costs.device, costs.part) == kind);
        RankClass {
            costs: own.unwrap_or(&self.costs[0]),
            batch: shares::batch_of(self.config, &self.mesh, rank),
        }
    }

    fn rules(&self) -> Result<StepRules> {
        let config = self.config;
        Ok(StepRules {
            uneven: config.data.uneven || !config.parallel.shares.is_empty(),
            views: config.ddp.hook == "none",
            scaler: config.precision.loss_scale > 0.0,
            clip: config.optimiser.clip_norm > 0.0,
            norms: optim::build::<F>(config, &[])?.needs_norms(),
            parts: self.costs[0].has_parts(),
            staleness: config.parallel.staleness,
            period: if config.ddp.hook == "local_sgd" { config.ddp.local_steps } else { 1 },
        })
    }

    fn driver(&self, rank: usize) -> Result<Box<dyn Driver>> {
        Ok(strategies::plan(self.config, rank, self.machine.topology.ranks())?.driver)
    }

    /// Predicts a step.
    pub fn step(&self) -> Result<StepPrediction> {
        if self.every_rank {
            let EveryRank { ranks, .. } = self.every_rank(false)?;
            let engines = vec!["messages on virtual time".into()];
            return prediction(ranks, (&|rank| self.class(rank), self.mesh), engines);
        }
        let ModeledMachine { topology, costs, sharing, plan, nccl, .. } = *self.machine;
        let simulated = SimulatedExchange::new(topology, costs, sharing, plan);
        let mut exchange: Box<dyn ExchangeModel + '_> = match nccl {
            Some(system) => Box::new(NcclModel::new(system, simulated)),
            None => Box::new(simulated),
        };
        let class = |rank| self.class(rank);
        unlike_step((&class, self.rules()?, self.mesh), &|rank| self.driver(rank), &mut *exchange)
    }

    /// Steps every rank; `observed` with what each communicates.
    pub fn every_rank(&self, observed: bool) -> Result<EveryRank> {
        let (class, drivers) = (|rank| self.class(rank), |rank| self.driver(rank));
        linked_step::step(
            (&class, self.rules()?, self.mesh),
            (self.channels, &drivers),
            self.machine,
            observed,
        )
    }
}
