//! A simulated machine and the engine that times collectives on it.

use crate::call::plan::{self, CallPlan, Choice, Nodes};
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::memory;
use allfold_collectives::time::{self, Engine, Job, LinkSharing, Outcome, Sent};
use allfold_report::records::{SimulatedCollective, SimulatorSpeed, TimeSpent};
use allfold_sim::machines::presets::Preset;
use allfold_sim::{Costs, Faults, LinkId, Picos, Topology};
use std::time::Instant;

/// The machine that is simulated.
pub struct SimulatedMachine {
    /// The name that the user gave.
    pub name: String,
    /// The links of the machine.
    pub topology: Topology,
    /// The faults of ranks and links.
    pub faults: Faults,
    /// The deadline of a collective, in virtual time.
    pub deadline: Option<Picos>,
    /// The fault rules as the user wrote them.
    pub rules: Vec<String>,
    /// How messages share a link.
    pub sharing: LinkSharing,
    /// The engine that the user chose.
    pub engine: Engine,
    /// The costs of messages and reductions.
    pub costs: Costs,
    /// The nodes of a machine that has a name; `None` for any other topology.
    pub nodes: Option<Nodes>,
}

/// The nodes of the machine that a topology names, with its options. `None` for a topology that names no machine, such as `nodes8`: its
/// lanes share a node's first NIC, and so many ranks are equal that 131,072 of them are simulated in a second.
fn nodes(name: &str) -> Option<Nodes> {
    let preset = Preset::with_options(name).ok()?;
    Some(Nodes { devices: preset.devices, nics: preset.nics.count })
}

impl SimulatedMachine {
    /// A simulated machine without faults: a built-in topology or a file.
    ///
    /// # Errors
    /// An unknown topology, or one without this many ranks.
    pub fn named(name: &str, ranks: u32) -> CommandResult<SimulatedMachine> {
        let topology = Topology::named(name, ranks).map_err(CommandError::usage)?;
        topology.notes().iter().for_each(|note| tracing::info!("{note}"));
        tracing::debug!("simulates {ranks} ranks of {name}, which have {} links", topology.links());
        Ok(SimulatedMachine {
            nodes: nodes(name),
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

    /// The plan of one size of a call on this machine.
    ///
    /// # Errors
    /// As [`Choice::at`].
    pub fn plan(&self, choice: &Choice, size: u64) -> CommandResult<CallPlan> {
        choice.on_nodes(size, self.nodes)
    }

    /// Times one size of a call; the second record gives the speed of the simulation itself.
    ///
    /// # Errors
    /// As [`Choice::at`]; a time that may not fit in 64 bits; a call that the engine refuses.
    pub fn time(&self, choice: &Choice, size: u64) -> CommandResult<(SimulatedCollective, SimulatorSpeed)> {
        self.outcome(choice, size).map(|(record, speed, _)| (record, speed))
    }

    /// As [`SimulatedMachine::time`], also with a line for each fault rule without effect: on links that no message of the call crosses, or
    /// after the call's end.
    ///
    /// # Errors
    /// As [`SimulatedMachine::time`].
    pub fn time_and_idle_faults(
        &self,
        choice: &Choice,
        size: u64,
    ) -> CommandResult<(SimulatedCollective, SimulatorSpeed, Vec<String>)> {
        let (record, speed, outcome) = self.outcome(choice, size)?;
        // With symmetry classes or merged lanes, the bytes are not those of every link.
        let of_all_links = outcome.links.len() == self.topology.links() as usize && outcome.folded == 1;
        let in_use = |link: LinkId| !of_all_links || outcome.links[link.0 as usize].0 > 0;
        let idle = if outcome.bytes.0 > 0 { self.faults.idle(in_use) } else { Vec::new() };
        let idle = idle
            .into_iter()
            .map(|rule| format!("no message of this call crosses a link of `{rule}`, which has no effect"));
        let notes = idle.chain(self.faults.late(outcome.time)).collect();
        Ok((record, speed, notes))
    }

    fn outcome(
        &self,
        choice: &Choice,
        size: u64,
    ) -> CommandResult<(SimulatedCollective, SimulatorSpeed, Outcome)> {
        let plan = self.plan(choice, size)?;
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
            interval: None,
            bound_us: Some(outcome.bounds.greatest().0.as_micros()),
            algbw_gbps,
            busbw_gbps,
            lanes: Some(choice.lanes).filter(|lanes| *lanes > 1),
            messages: Some(outcome.messages),
            rounded_up: outcome.rounded.is_some(),
            merged_lanes: Some(outcome.folded).filter(|lanes| *lanes > 1),
            ranks_per_class: Some(choice.shape.ranks() / outcome.finish.len().max(1) as u32)
                .filter(|ranks| *ranks > 1),
            skipped_messages: Some(outcome.skipped).filter(|skipped| *skipped > 0),
            wrong_elements: None,
            checksum: None,
        };
        Ok((record, speed, outcome))
    }

    /// Every message of one size, in order of arrival; every rank is simulated.
    ///
    /// # Errors
    /// As [`time::simulate`].
    pub fn messages(&self, choice: &Choice, size: u64) -> CommandResult<Vec<Sent>> {
        let plan = self.plan(choice, size)?;
        let mut messages = Vec::new();
        time::traced(&self.job(choice, &plan), &mut |sent| messages.push(*sent)).map_err(refused)?;
        Ok(messages)
    }

    /// The engine to use: the chosen one. Without memory to simulate every rank, `Auto` becomes the engine by symmetry, and `Full`
    /// is refused; on serial links, which the engine by symmetry does not take, `Auto` is refused too.
    fn affordable(&self, ranks: u32, window: u32) -> CommandResult<Engine> {
        // Bytes that an engine needs per rank; on serial links also the end of every step in the window.
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

    /// Refuses a call whose time may not fit: 64 bits hold 213 days in picoseconds.
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

    /// Where the time of one size is spent. Only for few ranks, because every message is kept.
    ///
    /// # Errors
    /// A call that cannot be simulated.
    pub fn spent(&self, choice: &Choice, size: u64) -> CommandResult<TimeSpent> {
        let plan = self.plan(choice, size)?;
        let explanation = time::explain(&self.job(choice, &plan)).map_err(refused)?;
        let call = choice.call(&plan);
        let parts = explanation.parts.named().into_iter().filter(|(_, part)| part.0 > 0);
        let longest = explanation.pairs.first().map(|(from, to, took)| (from.0, to.0, took.as_micros()));
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

    /// The job of the engines for a call of one size.
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

/// The error of a command from the error of an engine: injected faults become failed checks, mistakes that the user can correct become
/// usage errors, and all other errors are the simulator's own.
pub fn refused(error: time::Error) -> CommandError {
    match error {
        time::Error::Fault(failure) => CommandError::check(failure),
        time::Error::Job(_) | time::Error::NoSymmetry { .. } | time::Error::Overflow(_) => {
            CommandError::usage(error)
        }
        error => CommandError::run(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_collectives::Collective;
    use allfold_collectives::registry::{self, Shape};

    fn call(collective: Collective, name: &str, ranks: u32, lanes: u32) -> Choice {
        let algorithm = registry::find(collective, name).unwrap();
        Choice { lanes, ..Choice::new(collective, Some(algorithm), Shape::new(ranks).unwrap()) }
    }

    fn timed(topology: &str, engine: Engine, choice: &Choice, size: u64) -> SimulatedCollective {
        let mut machine = SimulatedMachine::named(topology, choice.shape.ranks()).unwrap();
        machine.engine = engine;
        machine.time(choice, size).unwrap().0
    }

    /// Eight NICs of 200 Gb/s each carry a lane of the ring; a single NIC would give a busbw of 22.6 GB/s.
    #[test]
    fn lanes_of_a_named_machine_leave_a_node_by_all_of_its_nics() {
        let ring = call(Collective::AllReduce, "ring", 64, 8);
        let busbw = |topology: &str| timed(topology, Engine::Auto, &ring, 64 << 20).busbw_gbps;
        let (named, scaled) = (busbw("dgx-a100"), busbw("dgx-a100:8"));
        assert!((100.0..200.0).contains(&named), "{named} GB/s");
        assert_eq!(named, scaled);
        assert_eq!(nodes("nodes8"), None);
        assert_eq!(nodes("dgx-a100:8,fat-tree=2:1"), Some(Nodes { devices: 8, nics: 8 }));
        // Four GPUs of each node and four NICs: a lane for each.
        assert_eq!(nodes("dgx-a100:4,devices=4,nics=4"), Some(Nodes { devices: 4, nics: 4 }));
        let lanes = |lanes| {
            let ring = call(Collective::AllReduce, "ring", 16, lanes);
            timed("dgx-a100:4,devices=4,nics=4", Engine::Auto, &ring, 64 << 20).busbw_gbps
        };
        assert!(lanes(4) > 3.0 * lanes(1), "{} and {} GB/s", lanes(4), lanes(1));
    }

    /// Lanes are not rotated if a root must keep its role, or if a node is only partly used.
    #[test]
    fn what_cannot_be_rotated_is_not() {
        let nodes = Nodes { devices: 8, nics: 8 };
        assert!(call(Collective::AllReduce, "ring", 16, 2).rotates(nodes));
        assert!(!call(Collective::AllReduce, "ring", 16, 1).rotates(nodes));
        assert!(!call(Collective::AllReduce, "ring", 12, 2).rotates(nodes));
        assert!(!call(Collective::AllReduce, "ring", 8, 2).rotates(nodes));
        assert!(!call(Collective::Broadcast, "chain", 16, 2).rotates(nodes));
        assert!(!call(Collective::AllReduce, "ring", 16, 2).rotates(Nodes { devices: 8, nics: 1 }));
    }

    /// Merging lanes and simulating one rank per symmetry class gives the same time as simulating every message.
    #[test]
    fn rotated_lanes_take_the_time_of_stepping_every_one() {
        let mut merged = 0;
        for (topology, ranks) in [("dgx-a100", 16), ("p4d", 24), ("dgx-a100", 32)] {
            for name in ["ring", "double_binary_tree", "halving_doubling"] {
                for (lanes, size) in [(2, 40_000), (3, 4 << 10), (8, 64 << 10), (16, 1 << 20), (32, 3 << 20)]
                {
                    let choice = call(Collective::AllReduce, name, ranks, lanes);
                    let auto = timed(topology, Engine::Auto, &choice, size);
                    let stepped = timed(topology, Engine::Events, &choice, size);
                    let what = format!("{name} on {ranks} of {topology}, {lanes} lanes: {}", auto.stepped());
                    assert_eq!(auto.time_us, stepped.time_us, "{what}");
                    merged += u32::from(auto.merged_lanes.is_some());
                }
            }
        }
        assert!(merged > 3, "lanes were merged in {merged} calls");
    }
}
