//! A simulated machine, and what it times.

use crate::call::plan::{self, CallPlan, Choice};
use crate::cli::error::{CommandError, CommandResult};
use crate::cli::memory;
use allfold_collectives::time::{self, Engine, Job, LinkSharing, Sent};
use allfold_report::records::{SimulatedCollective, SimulatorSpeed, TimeSpent};
use allfold_sim::{Costs, Faults, Picos, Topology};
use std::time::Instant;

/// The machine that is simulated.
pub struct SimulatedMachine {
    /// The name that the user gave.
    pub name: String,
    /// The machine's links.
    pub topology: Topology,
    /// The machine's faults.
    pub faults: Faults,
    /// How long a collective may take.
    pub deadline: Option<Picos>,
    /// The faults as they were asked for.
    pub rules: Vec<String>,
    /// How messages share a link.
    pub sharing: LinkSharing,
    /// Which engine is to time it.
    pub engine: Engine,
    /// The costs of messages and reductions.
    pub costs: Costs,
}

impl SimulatedMachine {
    /// A built-in topology or a file, with nothing wrong.
    pub fn named(name: &str, ranks: u32) -> CommandResult<SimulatedMachine> {
        let topology = Topology::named(name, ranks).map_err(CommandError::usage)?;
        topology.notes().iter().for_each(|note| eprintln!("note: {note}"));
        Ok(SimulatedMachine {
            name: name.into(),
            costs: topology.costs(),
            topology,
            faults: Faults::NONE,
            deadline: None,
            rules: Vec::new(),
            sharing: LinkSharing::default(),
            engine: Engine::Auto,
        })
    }

    /// Times one size of a call; the second record says how fast that was.
    pub fn time(&self, choice: &Choice, size: u64) -> CommandResult<(SimulatedCollective, SimulatorSpeed)> {
        let plan = choice.at(size)?;
        self.countable(&plan)?;
        let job = self.job(choice, &plan);
        #[allow(clippy::disallowed_methods, reason = "the simulator's own speed is measured")]
        let start = Instant::now();
        let outcome =
            time::simulate(&job, self.affordable(choice.shape.ranks(), plan.window / choice.lanes.max(1))?)
                .map_err(refused)?;
        let wall_s = start.elapsed().as_secs_f64();

        let (call, time_us) = (choice.call(&plan), outcome.time.as_micros());
        let (algbw_gbps, busbw_gbps) = plan::bandwidths(choice.collective, call.ranks, plan.bytes, time_us);
        let speed = SimulatorSpeed {
            engine: outcome.method.name().into(),
            collective: call.collective.clone(),
            algorithm: call.algorithm.clone(),
            ranks: call.ranks,
            messages: outcome.messages,
            wall_s,
            messages_per_s: outcome.messages as f64 / wall_s.max(1e-9),
        };
        let record = SimulatedCollective {
            backend: "sim".into(),
            call,
            topology: self.name.clone(),
            engine: outcome.method.name().into(),
            sharing: self.sharing.name().into(),
            window: plan.window,
            segment: plan.segment,
            faults: self.rules.clone(),
            time_us,
            bound_us: Some(outcome.bounds.greatest().0.as_micros()),
            algbw_gbps,
            busbw_gbps,
            messages: Some(outcome.messages),
            rounded_up: outcome.rounded.is_some(),
            merged_lanes: Some(outcome.folded).filter(|lanes| *lanes > 1),
            ranks_per_class: Some(choice.shape.ranks() / outcome.finish.len().max(1) as u32)
                .filter(|ranks| *ranks > 1),
            skipped_messages: Some(outcome.skipped).filter(|skipped| *skipped > 0),
            wrong_elements: None,
            checksum: None,
        };
        Ok((record, speed))
    }

    /// Every message of one size, in order of arrival, with every rank stepped.
    ///
    /// # Errors
    /// As [`time::simulate`].
    pub fn messages(&self, choice: &Choice, size: u64) -> CommandResult<Vec<Sent>> {
        let plan = choice.at(size)?;
        let mut messages = Vec::new();
        time::traced(&self.job(choice, &plan), &mut |sent| messages.push(*sent)).map_err(refused)?;
        Ok(messages)
    }

    /// The engine, where there is memory to step every rank; else only one that does not step them all.
    fn affordable(&self, ranks: u32, window: u32) -> CommandResult<Engine> {
        // The memory that a timetable needs per rank: its steps, and the ends of the steps in a window.
        let serial = self.sharing == LinkSharing::Serial;
        let each = if serial { 2048 + 8 * u64::from(window) } else { 256 };
        let enough =
            memory::require(u64::from(ranks).checked_mul(each), &format!("the clocks of {ranks} ranks"));
        match (self.engine, enough) {
            (Engine::Full, Err(refused)) => Err(refused),
            (Engine::Auto, Err(refused)) if serial => Err(refused),
            (Engine::Auto, Err(_)) => Ok(Engine::BySymmetry),
            (engine, _) => Ok(engine),
        }
    }

    /// Refuses what may take more picoseconds than fit: 64 bits hold 213 days.
    pub fn countable(&self, plan: &CallPlan) -> CommandResult {
        let links = self.topology.families().iter().map(|family| family.link);
        let slowest = links.map(|link| link.bandwidth.0).min().unwrap_or(u64::MAX);
        let pieces = plan.schedule.rounds() as f64 / f64::from(plan.schedule.segments());
        let days = pieces * plan.bytes as f64 / slowest as f64 / 86_400.0;
        if days < 100.0 {
            return Ok(());
        }
        Err(CommandError::usage(format!(
            "{} bytes over links of {:.3} GB/s may take {days:.0} days, and virtual time ends at 213; take a smaller size",
            plan.bytes,
            slowest as f64 / 1e9
        )))
    }

    /// Where the time of one size goes: of few ranks, since every message is kept.
    ///
    /// # Errors
    /// As the simulation.
    pub fn spent(&self, choice: &Choice, size: u64) -> CommandResult<TimeSpent> {
        let plan = choice.at(size)?;
        let explanation = time::explain(&self.job(choice, &plan)).map_err(refused)?;
        let call = choice.call(&plan);
        let parts = explanation.parts.named().into_iter().filter(|(_, part)| part.0 > 0);
        let longest = explanation.ways.first().map(|(from, to, took)| (from.0, to.0, took.as_micros()));
        Ok(TimeSpent {
            collective: call.collective,
            algorithm: call.algorithm,
            topology: self.name.clone(),
            ranks: self.topology.ranks(),
            bytes: call.bytes,
            time_us: explanation.time.as_micros(),
            parts: parts.map(|(name, part)| (name.to_string(), part.as_micros())).collect(),
            longest_wait: longest,
            busiest_link: explanation
                .links
                .first()
                .map(|link| (self.topology.link_name(link.link), link.share)),
        })
    }

    /// A call of one size, as the engines take it.
    pub fn job<'a>(&'a self, choice: &Choice, plan: &'a CallPlan) -> Job<'a> {
        Job {
            costs: self.costs,
            window: plan.window,
            sharing: self.sharing,
            faults: &self.faults,
            deadline: self.deadline,
            collective: Some(choice.collective),
            ..Job::new(&*plan.schedule, &plan.geometry, choice.dtype.size() as u32, &self.topology)
        }
    }
}

/// Mistakes that the user can correct become usage errors; other errors are the simulator's own.
pub fn refused(error: time::Error) -> CommandError {
    match error {
        time::Error::Fault(failure) => CommandError::check(failure),
        time::Error::Job(_) | time::Error::NoSymmetry { .. } | time::Error::Overflow(_) => {
            CommandError::usage(error)
        }
        error => CommandError::run(error),
    }
}
