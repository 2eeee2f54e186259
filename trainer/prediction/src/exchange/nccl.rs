//! NCCL's own estimate.

use super::{ExchangeModel, GroupedCollective, MessageTimes};
use allfold_collectives::{Collective, Rank};
use allfold_nccl_model::{Overrides, Platform, choose};
use allfold_sim::Picos;
use allfold_trainer::{Error, Result};
use std::collections::BTreeSet;

/// The time that NCCL's own tuner estimates for the algorithm it chooses.
pub struct NcclModel {
    platform: Platform,
    overrides: Overrides,
    used: BTreeSet<String>,
}

impl NcclModel {
    /// NCCL's model for this machine; `overrides` are the settings of `NCCL_ALGO` and `NCCL_PROTO`.
    pub fn new(platform: Platform, overrides: Overrides) -> NcclModel {
        NcclModel { platform, overrides, used: BTreeSet::new() }
    }
}

impl ExchangeModel for NcclModel {
    fn collective(&mut self, call: GroupedCollective) -> Result<Picos> {
        if !call.among.is_everyone() || call.collective != Collective::AllReduce {
            let what = format!(
                "NCCL's model times all-reduces among all ranks, and this is a {} among groups of {}; use the simulated collectives",
                call.collective.name(),
                call.among.size()
            );
            return Err(Error::Config(what));
        }
        let bytes = (call.count * call.dtype.size()) as u64;
        let chosen = choose(&self.platform, Collective::AllReduce, bytes, &self.overrides)
            .map_err(|error| Error::Config(error.to_string()))?;
        self.used.insert(format!("NCCL's model, {} {}", chosen.algorithm.name(), chosen.protocol.name()));
        Ok(Picos((chosen.time_us * 1e6).ceil() as u64))
    }

    fn message(&mut self, _: &[(Rank, Rank)], _: u32, _: u64) -> Result<MessageTimes> {
        Err(Error::Config(
            "NCCL's model does not time messages between two ranks; use the simulated collectives".into(),
        ))
    }

    fn engines(&self) -> Vec<String> {
        self.used.iter().cloned().collect()
    }
}
