//! Measures one call at one size, on ranks of any kind, and makes the records.

use crate::call::plan::{self, Choice};
use crate::measure::ranks::{MeasuredSide, Timing, measure_process, measure_size};
use crate::predict::machine::SimulatedMachine;
use crate::training::launch_mode::on_threads;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::{Communicator, World, check};
use allfold_kernels::for_dtype;
use allfold_report::records::{CollectiveCall, MeasuredCollective, SimulatedCollective};

allfold_base::named! {
    /// How ranks execute a collective.
    #[derive(clap::ValueEnum)]
    pub enum Path {
        /// Ranks read each other's buffers through shared memory.
        Fused = "fused",
        /// Ranks exchange the messages of the schedule.
        Messages = "messages",
        /// Ranks call MPI's own collectives.
        Native = "native",
    }
}

/// Where a measured sweep runs.
pub enum RunsOn {
    /// Ranks that are started for each size.
    World(World),
    /// Ranks of which this process is one.
    Process(Communicator),
}

/// The backend that carries the bytes, and the device of each rank.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// The backend's name: `threads`, `tcp`, ...
    pub backend: &'a str,
    /// `cpu`, or the GPU's name.
    pub device: &'a str,
}

/// A record, and the place of the first wrong element, if there is one.
pub struct Checked<R> {
    /// The record of the collective, in place or out of place.
    pub record: R,
    /// The rank and the element of the first wrong value, if there is one.
    pub first_wrong: Option<String>,
}

/// The parameters of a measured sweep.
pub struct Bench {
    /// How ranks execute the collective.
    pub path: Path,
    /// The collective call that is measured.
    pub choice: Choice,
    /// How each size is measured: calls, warm-up, checks.
    pub timing: Timing,
}

impl Bench {
    /// Measures one size on threads.
    ///
    /// # Errors
    /// Not enough memory, or a failed run.
    pub fn on_threads(&self, size: u64) -> CommandResult<Vec<Checked<MeasuredCollective>>> {
        let world = on_threads(self.choice.shape.ranks())?;
        let world = if self.path == Path::Messages { world.messages() } else { world };
        self.on("threads", &RunsOn::World(self.choice.on(world)), size)
    }

    /// Measures one size on the ranks of `runs_on`. Returns a record for each form that the collective has, in place and out of place.
    ///
    /// # Errors
    /// Not enough memory, or a failed run.
    pub fn on(
        &self,
        backend: &str,
        runs_on: &RunsOn,
        size: u64,
    ) -> CommandResult<Vec<Checked<MeasuredCollective>>> {
        let (choice, timing) = (&self.choice, self.timing);
        let sides = match runs_on {
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

    /// Runs one size on virtual time. Returns a record for each form that the collective has, in place and out of place.
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
                interval: None,
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

    /// The call of this size, with the hash and the order class of its reduction trees.
    ///
    /// # Errors
    /// A schedule that is not proved.
    pub fn call(&self, size: u64) -> CommandResult<CollectiveCall> {
        let plan = self.choice.at(size)?;
        if self.path == Path::Native {
            // MPI chooses the order of arithmetic, so there is no reduction tree to name.
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
