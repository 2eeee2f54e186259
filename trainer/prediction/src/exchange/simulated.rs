//! The schedules of a communicator, simulated on a topology.

use super::grouped::{InGroups, Messages};
use super::{ExchangeModel, GroupedCollective, MessageTimes};
use crate::RankGroups;
use allfold_collectives::schedule::Schedule;
use allfold_collectives::time::{Engine, Job, Outcome, simulate};
use allfold_collectives::{Geometry, Plan, Rank};
use allfold_sim::{Costs, Picos, Sharing, Topology};
use allfold_trainer::Result;
use std::collections::{BTreeMap, BTreeSet};

/// Above this number of ranks, unequal chunks are rounded up, so that one rank of each symmetry class suffices.
const STEPPED: u32 = 1024;

/// A communicator's own schedule, simulated on the topology.
pub struct SimulatedExchange<'a> {
    topology: &'a Topology,
    costs: Costs,
    sharing: Sharing,
    plan: &'a Plan,
    /// Known times by groups; then by collective, count and size of an element.
    known: BTreeMap<RankGroups, BTreeMap<(u8, usize, usize), Picos>>,
    messages: BTreeMap<(Vec<(Rank, Rank)>, u64), MessageTimes>,
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
        let (known, messages, engines) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        SimulatedExchange { topology, costs, sharing, plan, known, messages, engines }
    }

    fn job<'j>(&'j self, schedule: &'j dyn Schedule, geometry: &'j Geometry, element: usize) -> Job<'j> {
        Job {
            costs: self.costs,
            sharing: self.sharing.into(),
            ..Job::new(schedule, geometry, element as u32, self.topology)
        }
    }

    fn timed(&self, call: GroupedCollective) -> Result<Outcome> {
        let GroupedCollective { collective, count, dtype, among } = call;
        let prepared = self.plan.of(collective, among.size(), count, dtype)?;
        if !among.is_everyone() {
            let schedule = InGroups::new(prepared.schedule, among);
            let job = self.job(&schedule, &prepared.geometry, dtype.size());
            return Ok(simulate(&Job { window: prepared.window, ..job }, Engine::Full)?);
        }
        let job = self.job(&*prepared.schedule, &prepared.geometry, dtype.size());
        let job = Job { window: prepared.window, collective: Some(collective), ..job };
        let by_symmetry = (self.topology.ranks() > STEPPED)
            .then(|| simulate(&job, Engine::BySymmetryRounded).ok())
            .flatten();
        match by_symmetry {
            Some(outcome) => Ok(outcome),
            None => Ok(simulate(&job, Engine::Auto)?),
        }
    }
}

impl ExchangeModel for SimulatedExchange<'_> {
    fn collective(&mut self, call: GroupedCollective) -> Result<Picos> {
        let key = (call.collective as u8, call.count, call.dtype.size());
        if let Some(&known) = self.known.get(call.among).and_then(|times| times.get(&key)) {
            return Ok(known);
        }
        let outcome = self.timed(call)?;
        let rounded = if outcome.rounded.is_some() { ", chunks rounded up" } else { "" };
        self.engines.insert(format!("{}{rounded}", outcome.method.name()));
        self.known.entry(call.among.clone()).or_default().insert(key, outcome.time);
        Ok(outcome.time)
    }

    fn message(&mut self, pairs: &[(Rank, Rank)], ranks: u32, bytes: u64) -> Result<MessageTimes> {
        let key = (pairs.to_vec(), bytes);
        if let Some(&known) = self.messages.get(&key) {
            return Ok(known);
        }
        let schedule = Messages::new(pairs, ranks);
        let geometry = Geometry::whole(&schedule, bytes);
        let job = self.job(&schedule, &geometry, 1);
        // A message is no operation that is launched.
        let costs = Costs { launch: Picos::ZERO, ..self.costs };
        let outcome = simulate(&Job { costs, ..job }, Engine::Full)?;
        let done = |rank: Rank| outcome.finish[rank.index()];
        let times = MessageTimes {
            left: pairs.iter().map(|pair| done(pair.0)).max().unwrap_or_default(),
            arrived: pairs.iter().map(|pair| done(pair.1)).max().unwrap_or_default(),
        };
        self.messages.insert(key, times);
        Ok(times)
    }

    fn engines(&self) -> Vec<String> {
        self.engines.iter().cloned().collect()
    }
}
