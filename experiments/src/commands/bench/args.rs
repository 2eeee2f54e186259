//! Flags of `bench`.

use crate::call::sweep::SweepArgs;
use crate::cli::common::Common;
use crate::cli::error::{CommandError, CommandResult};
use crate::measure::bench::Path;
use clap::ValueEnum;

/// Flags of `bench`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold bench all_reduce --backend threads --ranks 4 -b 1K -e 64M -f 4
  allfold bench all_reduce --backend threads --ranks 8 --algo ring -b 16M -d bf16 -o max -n 50
  allfold bench all_reduce --backend tcp --ranks 4 -b 4K -e 64M -f 16
  allfold launch -n 4 -- bench all_reduce --backend shm --ranks 4 -b 4K -e 64M -f 16
  mpirun -n 4 allfold bench all_reduce --backend mpi --path native --ranks 4 -b 4K -e 64M
  allfold bench broadcast --backend sim --topology nodes8 --ranks 16 -b 1M -r 3
  allfold bench all_reduce --backend device --ranks 8 -b 1M -e 256M -f 4
  allfold bench all_reduce --backend nccl --ranks 2 -b 8 -e 256M -f 4

Every result is held against an exact reference, bit for bit; exits with 1 if any element differs. The memory bandwidth
of this machine is measured in the same run and stands below the table.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) sweep: SweepArgs,
    /// What carries the data: threads, shm, tcp or mpi (real time), device or nccl (GPUs, by their own clocks), or sim
    /// (virtual time). Where a launcher has started this process, ranks of shm and tcp are its processes; those of mpi
    /// always are
    #[arg(long, value_enum)]
    pub(super) backend: Backend,
    /// On threads and device: fused (ranks read each other's buffers) or messages (every send of the schedule); on mpi: messages, or
    /// native (MPI's own collectives) [default: fused, on mpi messages]
    #[arg(long, value_enum)]
    pub(super) path: Option<PathName>,
    /// On sim: the machine, a built-in name or a TOML file [default: switch]
    #[arg(long, value_name = "T")]
    pub(super) topology: Option<String>,
    /// On tcp: what connections are protected by [default: loopback]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(super) security: Option<Mode>,
    /// On tcp: as if hosts had this many ranks each, whose messages among themselves go through memory [default: none do]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) ranks_per_host: Option<u32>,
    /// Timed calls; on virtual time the first call says it all
    #[arg(short = 'n', long = "iters", value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Measuring")]
    pub(super) iterations: u32,
    /// Calls before those
    #[arg(
        short = 'w',
        long = "warmup_iters",
        value_name = "COUNT",
        default_value_t = 5,
        help_heading = "Measuring"
    )]
    pub(super) warmup: u32,
    /// Check results: 1 or 0
    #[arg(short = 'c', long = "check", value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1), help_heading = "Measuring")]
    pub(super) check: u8,
    /// On shm: buffers that the other ranks reach where they are (1), or the caller's own memory, copied (0)
    #[arg(short = 'R', long = "local_register", value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1), help_heading = "Measuring")]
    pub(super) register: u8,
    /// Seed of the inputs
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Measuring")]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) common: Common,
}

/// What carries the data.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Threads of this process, real time.
    Threads,
    /// Threads or processes that talk through a segment of shared memory, real time.
    Shm,
    /// Threads or processes that talk over loopback sockets, real time.
    Tcp,
    /// Processes that mpirun has started, real time.
    Mpi,
    /// Buffers on the GPUs of this process, one per rank: our algorithms, a graph each.
    Device,
    /// A thread per rank over NCCL: its own collectives, or with --algo ours over its messages.
    Nccl,
    /// Threads that carry real data on a virtual clock.
    Sim,
}

/// Whose clock times a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// This machine's.
    HostBackend(HostBackend),
    /// The GPUs' own.
    Gpus(GpuBackend),
    /// The simulator's.
    Virtual,
}

/// Backends of ranks on CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostBackend {
    /// Threads.
    Threads,
    /// A segment of shared memory.
    Shm,
    /// Sockets.
    Tcp,
    /// MPI.
    Mpi,
}

/// Backends of ranks on GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuBackend {
    /// Our algorithms on buffers of one process.
    Device,
    /// NCCL.
    Nccl,
}

impl Backend {
    /// Whose clock times it.
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

impl HostBackend {
    /// As flags and records name it.
    pub fn name(self) -> &'static str {
        match self {
            HostBackend::Threads => "threads",
            HostBackend::Shm => "shm",
            HostBackend::Tcp => "tcp",
            HostBackend::Mpi => "mpi",
        }
    }
}

impl GpuBackend {
    /// As flags and records name it.
    pub fn name(self) -> &'static str {
        match self {
            GpuBackend::Device => "device",
            GpuBackend::Nccl => "nccl",
        }
    }
}

/// How ranks that are threads do a collective.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathName {
    /// Through shared memory.
    Fused,
    /// By every message of the schedule.
    Messages,
    /// By MPI's own collectives.
    Native,
}

/// What connections between ranks are protected by.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: loopback only.
    Loopback,
    /// A handshake under a secret, then TLS 1.3.
    Tls,
    /// A handshake under a secret, then plain frames.
    TrustedFabric,
}

impl Args {
    /// How ranks do it, by the flags.
    pub fn path(&self) -> CommandResult<Path> {
        let path = match self.path {
            Some(PathName::Fused) => Path::Fused,
            Some(PathName::Messages) => Path::Messages,
            Some(PathName::Native) => Path::Native,
            None if self.backend == Backend::Mpi => Path::Messages,
            None => Path::Fused,
        };
        let fits = match path {
            Path::Native => self.backend == Backend::Mpi,
            Path::Fused => self.backend != Backend::Mpi,
            Path::Messages => matches!(self.backend, Backend::Mpi | Backend::Threads | Backend::Device),
        };
        match fits {
            true => Ok(path),
            false => Err(CommandError::usage(
                "--path: fused and messages are of --backend threads and device, messages and native of mpi",
            )),
        }
    }

    /// Refuses flags of another backend.
    pub fn check(&self) -> CommandResult {
        if self.topology.is_some() && self.backend != Backend::Sim {
            return Err(CommandError::usage("--topology needs the virtual clock: use --backend sim"));
        }
        if self.security.is_some() && self.backend != Backend::Tcp {
            return Err(CommandError::usage("--security is about sockets: use --backend tcp"));
        }
        if self.ranks_per_host.is_some() && self.backend != Backend::Tcp {
            return Err(CommandError::usage(
                "--ranks-per-host is about sockets and what goes beside them: use --backend tcp",
            ));
        }
        Ok(())
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
