//! A process' rank in the world, and the launcher whose variables give it.

use crate::Rank;
use std::fmt;

allfold_base::named! {
    /// The launcher that set the variables.
    pub enum Launcher {
        /// `RANK` and its companions: torchrun's, or those of `allfold launch`.
        Torchrun = "the launcher",
        /// The variables of a step that Slurm's `srun` started.
        Slurm = "Slurm",
        /// The variables of Open MPI's `mpirun`.
        OpenMpi = "Open MPI",
        /// The variables of PMI, which MPICH's and Intel's `mpiexec` set.
        Pmi = "PMI",
    }
}

/// The address of the rendezvous, and whether the launcher or rank 0 serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendezvousAddress {
    /// A host's name or address.
    pub host: String,
    /// The port of the rendezvous.
    pub port: u16,
    /// Whether the launcher serves the rendezvous; else rank 0 does.
    pub served: bool,
}

impl fmt::Display for RendezvousAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A process' rank in the world and the rendezvous, as its launcher's variables give them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The launcher that set the variables.
    pub launcher: Launcher,
    /// The rank of this process.
    pub rank: Rank,
    /// Number of ranks.
    pub world_size: u32,
    /// The rank's number among the ranks of its host.
    pub local_rank: u32,
    /// Number of ranks of its host.
    pub local_world_size: u32,
    /// The number of the rank's host if the launcher gives one, else 0.
    pub node_rank: u32,
    /// The address of the rendezvous.
    pub rendezvous_address: RendezvousAddress,
    /// How often the launcher has restarted this world: ranks of an earlier start are refused.
    pub epoch: u32,
    /// The launcher's name of the job: ranks of another job are refused.
    pub job: String,
}
