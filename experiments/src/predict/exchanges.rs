//! How the exchanges of a predicted training step are timed.

use allfold_cli::error::{CommandError, CommandResult};
use allfold_prediction::NcclSystem;
use allfold_sim::machines::presets::Preset;
use allfold_validation::file::ParameterFile;

/// The model that times the exchanges of a training step.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchanges {
    /// Allfold's own schedules, simulated on the topology
    Simulated,
    /// NCCL's choice on the machine, by the model that is fitted to published runs (`allfold validate`)
    Nccl,
    /// NCCL's choice, by the time that its own tuner computes
    Tuner,
}

impl Exchanges {
    /// The model that a user names; if none is named, NCCL's fitted model where the topology is a machine that NCCL's model has with each
    /// of these numbers of ranks, otherwise the simulated schedules.
    pub fn of(named: Option<Exchanges>, topology: &str, counts: &[u32]) -> Exchanges {
        let is_machine = || counts.iter().all(|ranks| Preset::machine(topology, *ranks).is_ok());
        named.unwrap_or_else(|| if is_machine() { Exchanges::Nccl } else { Exchanges::Simulated })
    }

    /// NCCL on `ranks` ranks of a machine; `None` if exchanges are simulated.
    ///
    /// # Errors
    /// A topology that is no machine of NCCL's model, or not with so many ranks.
    pub fn system(self, topology: &str, ranks: u32) -> CommandResult<Option<NcclSystem>> {
        if self == Exchanges::Simulated {
            return Ok(None);
        }
        let machine = Preset::machine(topology, ranks)
            .map_err(|error| CommandError::usage(format!("{error}; or take --collectives simulated")))?;
        let fitted = || ParameterFile::published().map_err(CommandError::run);
        let fitted = if self == Exchanges::Nccl { Some(fitted()?.parameters()) } else { None };
        Ok(Some(NcclSystem { machine, fitted }))
    }
}
