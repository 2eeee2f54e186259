//! One call, measured at a size where its ranks are, as records.

use crate::call::plan::{self, Choice};
use crate::cli::error::{CommandError, CommandResult};
use crate::measure::ranks::{MeasuredSide, Timing, measure_process, measure_size};
use crate::predict::machine::SimulatedMachine;
use allfold_collectives::{Communicator, World, check};
use allfold_kernels::for_dtype;
use allfold_report::records::{CollectiveCall, MeasuredCollective, SimulatedCollective};

/// How ranks that are threads do a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Through shared memory.
    Fused,
    /// By every message of the schedule.
    Messages,
    /// By MPI's own collectives.
    Native,
}

impl Path {
    /// The name of the path after `--path`.
    pub fn name(self) -> &'static str {
        match self {
            Path::Fused => "fused",
            Path::Messages => "messages",
            Path::Native => "native",
        }
    }
}

/// Where a measured sweep runs.
pub enum RunsOn {
    /// Ranks that are started for each size.
    World(World),
    /// This process is one rank.
    Process(Communicator),
}

/// What carried the bytes, and what each rank computes on.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// `threads`, `tcp`, ...
    pub backend: &'a str,
    /// `cpu`, or the GPU's name.
    pub device: &'a str,
}

/// A record, and where the first wrong element is, if one is.
pub struct Checked<R> {
    /// One form of the collective.
    pub record: R,
    /// Rank and element.
    pub first_wrong: Option<String>,
}

/// What a measured sweep is asked for.
pub struct Bench {
    /// How threads do it.
    pub path: Path,
    /// The call.
    pub choice: Choice,
    /// How it is measured.
    pub timing: Timing,
}

impl Bench {
    /// One size on threads.
    ///
    /// # Errors
    /// Not enough memory, or a failed run.
    pub fn on_threads(&self, size: u64) -> CommandResult<Vec<Checked<MeasuredCollective>>> {
        let world = World::threads(self.choice.shape.ranks());
        let world = if self.path == Path::Messages { world.messages() } else { world };
        self.on("threads", &RunsOn::World(self.choice.on(world)), size)
    }

    /// Measures one size on the ranks of `carrier`. Returns a record for each form that the collective has, in place and out of place.
    ///
    /// # Errors
    /// Not enough memory, or a failed run.
    pub fn on(
        &self,
        backend: &str,
        carrier: &RunsOn,
        size: u64,
    ) -> CommandResult<Vec<Checked<MeasuredCollective>>> {
        let (choice, timing) = (&self.choice, self.timing);
        let sides = match carrier {
            RunsOn::World(world) => self.sides(world, size)?,
            RunsOn::Process(comm) => for_dtype!(choice.dtype, measure_process(comm, choice, size, timing))?,
        };
        let call = self.call(size)?;
        let record = |side: MeasuredSide| Checked {
            record: self.measured(Placement { backend, device: "cpu" }, &call, &side),
            first_wrong: side.first_wrong,
        };
        Ok(sides.into_iter().map(record).collect())
    }

    /// One size on virtual time: a record per form that the collective has.
    ///
    /// # Errors
    /// Not enough memory, or a failed run.
    pub fn on_sim(
        &self,
        machine: &SimulatedMachine,
        size: u64,
    ) -> CommandResult<Vec<Checked<SimulatedCollective>>> {
        let sides = self.sides(&self.choice.on(World::sim(&machine.topology).costs(machine.costs)), size)?;
        let call = self.call(size)?;
        let (timed, _) = machine.time(&self.choice, size)?;
        let record = |side: &MeasuredSide| {
            let (algbw_gbps, busbw_gbps) =
                plan::bandwidths(self.choice.collective, call.ranks, call.bytes, side.time_us);
            SimulatedCollective {
                call: call.clone(),
                engine: "real_data".into(),
                time_us: side.time_us,
                algbw_gbps,
                busbw_gbps,
                merged_lanes: None,
                ranks_per_class: None,
                skipped_messages: None,
                wrong_elements: side.wrong,
                checksum: side.checksum.clone(),
                ..timed.clone()
            }
        };
        let checked = |side: MeasuredSide| Checked { record: record(&side), first_wrong: side.first_wrong };
        Ok(sides.into_iter().map(checked).collect())
    }

    fn sides(&self, world: &World, size: u64) -> CommandResult<Vec<MeasuredSide>> {
        let (choice, timing) = (&self.choice, self.timing);
        for_dtype!(choice.dtype, measure_size(world, choice, size, timing))
    }

    /// The call of this size, with the identity of its result.
    ///
    /// # Errors
    /// A schedule that is not proved.
    pub fn call(&self, size: u64) -> CommandResult<CollectiveCall> {
        let plan = self.choice.at(size)?;
        if self.path == Path::Native {
            // The order of arithmetic is not ours, so there is no tree to name.
            return Ok(CollectiveCall { algorithm: "mpi_native".into(), ..self.choice.call(&plan) });
        }
        let proof = check::symbolic(&*plan.schedule, self.choice.collective, self.choice.shape.root());
        let proof = proof.map_err(CommandError::check)?;
        let tree = proof.hash().map(|hash| hash.to_string());
        Ok(CollectiveCall {
            tree_hash: tree,
            order_class: proof.order().map(|order| order.to_string()),
            ..self.choice.call(&plan)
        })
    }

    /// Makes a record of a measured side. `ran` says which backend carried the bytes and what each rank computes on.
    pub fn measured(
        &self,
        ran: Placement<'_>,
        call: &CollectiveCall,
        side: &MeasuredSide,
    ) -> MeasuredCollective {
        let (algbw_gbps, busbw_gbps) =
            plan::bandwidths(self.choice.collective, call.ranks, call.bytes, side.time_us);
        MeasuredCollective {
            backend: ran.backend.into(),
            device: ran.device.into(),
            path: match ran.backend {
                "threads" | "mpi" | "device" => Some(self.path.name().into()),
                "shm" => Some(if self.timing.registered { "registered" } else { "copied" }.into()),
                _ => None,
            },
            call: call.clone(),
            in_place: side.in_place,
            iterations: self.timing.iterations,
            time_us: side.time_us,
            time_error_us: side.error_us,
            algbw_gbps,
            busbw_gbps,
            nccl_estimate_us: None,
            wrong_elements: side.wrong,
            checksum: side.checksum.clone(),
        }
    }
}
