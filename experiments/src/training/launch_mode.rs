//! Where the ranks of a training run execute.

use allfold_cli::devices::RankDevices;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::environment::Environment;
use allfold_collectives::{Communicator, Joining, OnThreads, Plan, Rank, World};
use allfold_prediction::{ModeledMachine, shares_by_speed};
use allfold_sim::{Device, Faults, Topology};
use allfold_trainer::config::RankDevice;
use allfold_trainer::{Config, SampleForm};
use std::sync::Arc;
use std::time::Duration;

/// Simulated ranks: one per rank of a topology, each computing on a device.
#[derive(Clone)]
pub struct SimulatedRanks {
    /// The ranks and their links.
    pub topology: Topology,
    /// The devices of the ranks on virtual time, for records.
    pub devices: RankDevices,
    /// The faults of ranks and links, and the rules by which some ranks have other devices.
    pub faults: Faults,
}

/// Where and how the ranks of a run execute.
#[derive(Clone)]
pub enum LaunchMode {
    /// Threads of this process, real time.
    Threads(u32),
    /// This process is one rank of a world that a launcher has started.
    Process(Box<Environment>),
    /// This process is one rank of the MPI job that mpirun has started: its rank and the number of ranks.
    Mpi(Rank, u32),
    /// This process is one rank of ranks that have joined already.
    Joined(Arc<Communicator>),
    /// Threads on virtual time: one for each rank of a topology, each computing on a device.
    Sim(Box<SimulatedRanks>),
}

impl LaunchMode {
    /// Threads on virtual time, without faults.
    pub fn sim(topology: Topology, device: Device) -> LaunchMode {
        LaunchMode::Sim(Box::new(SimulatedRanks { topology, devices: device.into(), faults: Faults::NONE }))
    }

    /// The number of ranks of this mode.
    pub fn ranks(&self) -> u32 {
        match self {
            LaunchMode::Threads(ranks) => *ranks,
            LaunchMode::Process(environment) => environment.world_size,
            LaunchMode::Mpi(_, ranks) => *ranks,
            LaunchMode::Joined(comm) => comm.size(),
            LaunchMode::Sim(machine) => machine.topology.ranks(),
        }
    }

    /// The first of the ranks in this process.
    pub fn first_rank(&self) -> u32 {
        match self {
            LaunchMode::Process(environment) => environment.rank.0,
            LaunchMode::Mpi(rank, _) => rank.0,
            LaunchMode::Joined(comm) => comm.rank().0,
            LaunchMode::Threads(_) | LaunchMode::Sim(_) => 0,
        }
    }

    /// The name of this mode in records, and whether its times are measured.
    pub fn kind(&self) -> (&'static str, bool) {
        match self {
            LaunchMode::Threads(_) => ("threads", true),
            LaunchMode::Process(_) | LaunchMode::Joined(_) => ("tcp", true),
            LaunchMode::Mpi(..) => ("mpi", true),
            LaunchMode::Sim(_) => ("sim", false),
        }
    }

    /// The devices of the ranks in words: `cpu`, the name of the GPUs, both, or on virtual time the names of device models. A process
    /// that is one rank opens GPUs only if its own device is a GPU.
    ///
    /// # Errors
    /// A GPU that is missing.
    pub fn device(&self, config: &Config) -> CommandResult<String> {
        if let LaunchMode::Sim(machine) = self {
            return Ok(machine.devices.to_string());
        }
        let gpus = match self.is_one_rank()
            && config.device_of(self.first_rank() as usize).map_err(CommandError::usage)? == RankDevice::Cpu
        {
            true => None,
            false => allfold_trainer::cuda::open(config)?.map(|gpus| gpus.name()),
        };
        Ok(match (gpus, config.mixes_devices()) {
            (gpus, true) => format!("{} and cpu", gpus.unwrap_or_else(|| "cuda".into())),
            (gpus, false) => gpus.unwrap_or_else(|| "cpu".into()),
        })
    }

    /// The shares of a step's samples by the speed of each rank's device model.
    ///
    /// # Errors
    /// Ranks that are not on virtual time; a step that cannot be predicted.
    pub fn shares_by_speed(&self, config: &Config, samples: SampleForm) -> CommandResult<Vec<u32>> {
        let LaunchMode::Sim(machine) = self else {
            return Err(CommandError::usage(
                "--share-by-speed needs the device models of --backend sim or the devices of this process; for ranks that are processes, set parallel.shares",
            ));
        };
        let plan = Plan::default();
        let alike = ModeledMachine::new(&machine.topology, machine.devices.device, &plan);
        let machine = ModeledMachine { devices: &machine.faults, ..alike };
        shares_by_speed(config, samples, &machine).map_err(CommandError::from)
    }

    /// Whether this process is one rank of several processes.
    pub fn is_one_rank(&self) -> bool {
        !matches!(self, LaunchMode::Threads(_) | LaunchMode::Sim(_))
    }

    /// Whether this process reports the run; of several processes only one does.
    pub fn is_reporter(&self) -> bool {
        self.first_rank() == 0
    }
}

/// How long an operation of ranks on real time may take: five minutes, or what `ALLFOLD_TIMEOUT` says.
///
/// # Errors
/// A variable with a value that makes no sense.
pub fn operation_deadline() -> CommandResult<Duration> {
    Ok(Joining::deadlines_from_env()?.operation)
}

/// A world of threads of this process, with the [`operation_deadline`].
///
/// # Errors
/// Those of [`operation_deadline`].
pub fn on_threads(ranks: u32) -> CommandResult<World<OnThreads>> {
    Ok(World::threads(ranks).deadline(operation_deadline()?))
}

/// The communicator of this process as a rank of its MPI job. `native`: MPI's own collectives run where no algorithm is named.
///
/// # Errors
/// MPI cannot be started.
#[cfg(feature = "mpi")]
pub fn over_mpi(native: bool) -> CommandResult<Communicator> {
    use allfold_collectives::mpi::Options;
    let flight = Joining::from_env().map_err(CommandError::from)?.flight;
    Communicator::over_mpi(Options { native, flight, ..Options::default() }).map_err(CommandError::from)
}

/// The communicator of this process as a rank of its MPI job.
///
/// # Errors
/// Always: this program was built without MPI.
#[cfg(not(feature = "mpi"))]
pub fn over_mpi(_native: bool) -> CommandResult<Communicator> {
    Err(CommandError::usage(
        "this program was built without MPI: run scripts/install-mpi.sh, then cargo build --release --features mpi",
    ))
}
