//! The variables that a launcher sets in a process' environment: the process' rank, the world size, and the rendezvous address.
//!
//! ```text
//! torchrun, allfold launch   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_*
//! Slurm (srun)               SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID SLURM_NODEID SLURM_STEP_NODELIST SLURM_JOB_ID
//! Open MPI (mpirun)          OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE, OMPI_MCA_ess_base_jobid
//! PMI (MPICH, Intel MPI)     PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
//! ```
//!
//! If several launchers' variables are set, `RANK` and `WORLD_SIZE` take precedence, then Open MPI's, Slurm's and PMI's. `RANK` and
//! `WORLD_SIZE` are refused if another launcher's variables contradict them. `MASTER_ADDR` and `MASTER_PORT`, if set, give the rendezvous
//! address under every launcher. Sources: the documentation of the variables of torchrun, Slurm (srun) and Open MPI.

mod contracts;
mod nodelist;
mod process;
mod variables;

pub use nodelist::first_host;
pub use process::{Environment, Launcher, RendezvousAddress};
pub use variables::{seconds, some_seconds};

use crate::{Error, Result};
pub use variables::{Variables, wrong};

impl Environment {
    /// Reads this process' environment. `None`: no launcher's variables are set.
    ///
    /// # Errors
    /// [`Error::Environment`] names the variable that is missing or invalid, and the value that was read.
    pub fn detect() -> Result<Option<Environment>> {
        Environment::read(variable)
    }

    /// [`Environment::detect`] with variables from `lookup`.
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
