//! Flags of `bench`.

use super::nccl_flags::NcclFlags;
use crate::call::sweep::SweepArgs;
use crate::measure::bench::Path;
use allfold_cli::common::Common;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_report::sizes::rank_count;
use clap::ValueEnum;
use std::path::PathBuf;

/// Flags of `bench`.
#[derive(clap::Args, Debug, Clone)]
#[command(after_help = "Examples:
  allfold bench all_reduce --backend threads --ranks 4 -b 1K -e 64M -f 4
  allfold bench all_reduce --backend threads --ranks 8 --algo ring -b 16M -d bf16 -o max -n 50
  allfold bench all_reduce --backend threads --ranks 4 --algo ring,halving_doubling -b 1K -e 16M --plot curves.svg
  allfold bench all_reduce --backend tcp --ranks 4 -b 4K -e 64M -f 16
  allfold launch -n 4 -- bench all_reduce --backend shm -b 4K -e 64M -f 16
  mpirun -n 4 allfold bench all_reduce --backend mpi --path native --ranks 4 -b 4K -e 64M
  allfold bench broadcast --backend sim --topology nodes8 --ranks 16 -b 1M -r 3
  allfold bench all_reduce --backend device --ranks 8 -b 1M -e 256M -f 4
  allfold bench all_reduce --backend nccl --ranks 2 -b 8 -e 256M -f 4
  srun allfold bench all_reduce --backend nccl -b 8 -e 8G -f 2

Every result is compared with an exact reference, bit for bit; the exit code is 1 if any element differs. The memory
bandwidth of this machine is measured in the same run and printed below the table.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) sweep: SweepArgs,
    /// How ranks exchange data: threads, shm, tcp or mpi (real time), device or nccl (GPUs, timed by the GPUs), or sim
    /// (virtual time). Ranks of mpi are the processes of mpirun; ranks of shm, tcp and nccl are the processes of a launcher,
    /// if a launcher has started this one
    #[arg(long, value_enum)]
    pub(super) backend: Backend,
    /// With threads and device: fused (ranks read each other's buffers) or messages (every send of the schedule). With mpi:
    /// messages or native (MPI's own collectives) [default: fused; with mpi, messages]
    #[arg(long, value_enum)]
    pub(super) path: Option<Path>,
    /// With sim: the simulated machine, a name (`allfold machines` lists them) or a file [default: switch]
    #[arg(long, value_name = "T")]
    pub(super) topology: Option<String>,
    /// With tcp: how connections are protected [default: loopback]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(super) security: Option<Mode>,
    /// With tcp: treat this many ranks, 1 to 1048576, as one host; ranks of one host exchange messages through shared memory [default: every rank is a host of its own]
    #[arg(long, value_name = "COUNT", value_parser = rank_count)]
    pub(super) ranks_per_host: Option<u32>,
    /// Number of timed calls, 1 to 1000000; on virtual time one call is timed
    #[arg(short = 'n', long = "iters", value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000), help_heading = "Measuring")]
    pub(super) iterations: u32,
    /// Number of untimed calls before the timed ones, 0 to 1000000
    #[arg(short = 'w', long = "warmup_iters", value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000_000), help_heading = "Measuring")]
    pub(super) warmup: u32,
    /// Check every result: 1 or 0
    #[arg(short = 'c', long = "check", value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1), help_heading = "Measuring")]
    pub(super) check: u8,
    /// With shm: registered buffers, which other ranks read in place (1), or buffers that are copied (0) [default: 1]. With nccl: buffers
    /// that are not registered (0), registered (1), or windows of all ranks (2) [default: 0]
    #[arg(short = 'R', long = "local_register", value_name = "0|1|2", value_parser = clap::value_parser!(u8).range(0..=2), help_heading = "Measuring")]
    pub(super) register: Option<u8>,
    /// Seed of the inputs, 0 to 2^64 - 1
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Measuring")]
    pub(super) seed: u64,
    /// Draw bus bandwidth over sizes, a curve for each algorithm, into an SVG file
    #[arg(long, value_name = "FILE", value_parser = allfold_cli::files::svg(), help_heading = "Measuring")]
    pub(super) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(super) nccl: NcclFlags,
    #[command(flatten)]
    pub(super) common: Common,
}

/// How ranks exchange data.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Threads of this process, real time.
    Threads,
    /// Threads or processes with a shared-memory segment, real time.
    Shm,
    /// Threads or processes with sockets, real time.
    Tcp,
    /// Processes that mpirun has started, real time.
    Mpi,
    /// One buffer per rank on the GPUs of this process: Allfold's algorithms, a CUDA graph each.
    Device,
    /// Threads or processes over NCCL: NCCL's collectives, or with --algo Allfold's algorithms over NCCL's messages.
    Nccl,
    /// Threads that exchange real data on a virtual clock.
    Sim,
}

/// The clock that times a backend, with the backends that it times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The clock of this machine.
    HostBackend(HostBackend),
    /// The clocks of the GPUs.
    Gpus(GpuBackend),
    /// The clock of the simulator.
    Virtual,
}

allfold_base::named! {
    /// Backends of ranks on CPUs.
    pub enum HostBackend {
        /// Ranks that are threads of this process.
        Threads = "threads",
        /// Ranks over a segment of shared memory.
        Shm = "shm",
        /// Ranks that communicate over sockets.
        Tcp = "tcp",
        /// Ranks that communicate over MPI.
        Mpi = "mpi",
    }
}

allfold_base::named! {
    /// Backends of ranks on GPUs.
    pub enum GpuBackend {
        /// Allfold's algorithms on the GPUs of one process.
        Device = "device",
        /// NCCL, a thread per rank.
        Nccl = "nccl",
    }
}

impl Backend {
    /// The clock that times the backend.
    pub fn clock(self) -> Clock {
        match self {
            Backend::Threads => Clock::HostBackend(HostBackend::Threads),
            Backend::Shm => Clock::HostBackend(HostBackend::Shm),
            Backend::Tcp => Clock::HostBackend(HostBackend::Tcp),
            Backend::Mpi => Clock::HostBackend(HostBackend::Mpi),
            Backend::Device => Clock::Gpus(GpuBackend::Device),
            Backend::Nccl => Clock::Gpus(GpuBackend::Nccl),
            Backend::Sim => Clock::Virtual,
        }
    }
}

/// How connections between ranks are protected.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No protection: only loopback is accepted.
    Loopback,
    /// A handshake under a secret, then TLS 1.3.
    Tls,
    /// A handshake under a secret, then plain frames.
    TrustedFabric,
}

impl Args {
    /// How ranks execute the collective, as the flags say.
    pub fn path(&self) -> CommandResult<Path> {
        let usual = if self.backend == Backend::Mpi { Path::Messages } else { Path::Fused };
        let path = self.path.unwrap_or(usual);
        let fits = match path {
            Path::Native => self.backend == Backend::Mpi,
            Path::Fused => self.backend != Backend::Mpi,
            Path::Messages => matches!(self.backend, Backend::Mpi | Backend::Threads | Backend::Device),
        };
        match fits {
            true => Ok(path),
            false => Err(CommandError::usage(
                "--path: use fused or messages with --backend threads and device, messages or native with --backend mpi",
            )),
        }
    }

    /// Refuses flags that belong to another backend.
    pub fn check(&self) -> CommandResult {
        if self.topology.is_some() && self.backend != Backend::Sim {
            return Err(CommandError::usage(
                "--topology describes a simulated machine: use it with --backend sim",
            ));
        }
        if self.security.is_some() && self.backend != Backend::Tcp {
            return Err(CommandError::usage("--security protects sockets: use it with --backend tcp"));
        }
        if self.ranks_per_host.is_some() && self.backend != Backend::Tcp {
            return Err(CommandError::usage(
                "--ranks-per-host chooses between sockets and shared memory: use it with --backend tcp",
            ));
        }
        match (self.register, self.backend) {
            (None, _) | (Some(_), Backend::Nccl) | (Some(0 | 1), Backend::Shm) => {}
            (Some(_), Backend::Shm) => {
                return Err(CommandError::usage("-R 2 makes windows of NCCL: use it with --backend nccl"));
            }
            _ => return Err(CommandError::usage("-R registers buffers: use it with --backend shm or nccl")),
        }
        self.nccl.check(self.backend == Backend::Nccl, self.sweep.algo.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_backend_is_recorded_under_another_one_s_name() {
        for backend in Backend::value_variants() {
            let flag = backend.to_possible_value().unwrap().get_name().to_string();
            let recorded = match backend.clock() {
                Clock::HostBackend(host) => host.name(),
                Clock::Gpus(gpus) => gpus.name(),
                Clock::Virtual => "sim",
            };
            assert_eq!(recorded, flag);
        }
    }
}
