//! What a launcher tells a process through its environment: which rank it is, of how many, and where ranks meet.
//!
//! ```text
//! torchrun, allfold launch   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_*
//! Slurm (srun)               SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURM_NODEID SLURM_STEP_NODELIST SLURM_JOB_ID
//! Open MPI (mpirun)          OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE, OMPI_MCA_ess_base_jobid
//! PMI (MPICH, Intel MPI)     PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
//! ```
//!
//! The first of these whose variables are there counts, and is refused where another says that there are more processes;
//! `MASTER_ADDR` and `MASTER_PORT` may say otherwise where ranks meet. Sources: torchrun's, Slurm's (srun) and Open MPI's documentation of their environment variables.

mod contracts;
mod nodelist;
mod variables;

pub use nodelist::first_host;
pub use variables::seconds;

use crate::{Error, Rank, Result};
use std::fmt;
pub use variables::{Variables, wrong};

/// Whose variables were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `RANK` and its companions: torchrun's, or those of `allfold launch`.
    Torchrun,
    /// Those of a step that Slurm's `srun` started.
    Slurm,
    /// Those of Open MPI's `mpirun`.
    OpenMpi,
    /// Those of PMI, which MPICH's and Intel's `mpiexec` set.
    Pmi,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Torchrun => "the launcher",
            Launcher::Slurm => "Slurm",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Pmi => "PMI",
        })
    }
}

/// Where ranks meet, and who serves there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// A host's name or address.
    pub host: String,
    /// The port there.
    pub port: u16,
    /// Whether the launcher serves the rendezvous; else rank 0 does.
    pub served: bool,
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A process' place in the world, as its launcher says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Whose variables these are.
    pub launcher: Launcher,
    /// This process' rank.
    pub rank: Rank,
    /// Number of ranks.
    pub world_size: u32,
    /// Its number among the ranks of its host.
    pub local_rank: u32,
    /// Number of ranks of its host.
    pub local_world_size: u32,
    /// Its host's number, if the launcher says; else 0.
    pub node_rank: u32,
    /// Where ranks meet.
    pub meeting: Meeting,
    /// How often the launcher has started this world again: ranks of an earlier start are refused.
    pub epoch: u32,
    /// What the launcher calls the job: ranks of another one are refused.
    pub job: String,
}

impl Environment {
    /// Reads this process' environment. `None`: no launcher's variables are there.
    ///
    /// # Errors
    /// [`Error::Environment`] names the variable that is missing or makes no sense, and what was read.
    pub fn detect() -> Result<Option<Environment>> {
        Environment::read(variable)
    }

    /// As [`Environment::detect`], from variables that `lookup` knows.
    ///
    /// # Errors
    /// As [`Environment::detect`].
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Environment>> {
        let variables = Variables::new(&lookup);
        let Some(launcher) = contracts::launcher(&variables) else { return Ok(None) };
        let place = match launcher {
            Launcher::Torchrun => contracts::torchrun(&variables),
            Launcher::Slurm => contracts::slurm(&variables),
            Launcher::OpenMpi => contracts::open_mpi(&variables),
            Launcher::Pmi => contracts::pmi(&variables),
        }?;
        place.checked(launcher, &variables).map(Some)
    }
}

/// A variable of this process' own environment.
pub fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// The error of a process that no launcher started.
pub fn absent() -> Error {
    Error::Environment {
        variable: "RANK".into(),
        read: None,
        wanted: "start the program by `allfold launch -n N -- PROGRAM`, torchrun, srun or mpirun, \
                 or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
            .into(),
    }
}
