//! The time of exchanges among ranks.

mod grouped;
mod nccl;
mod simulated;

pub use nccl::{NcclModel, NcclSystem};
pub use simulated::SimulatedExchange;

use crate::RankGroups;
use allfold_base::lock;
use allfold_collectives::{Collective, DType, Rank};
use allfold_sim::Picos;
use allfold_trainer::Result;
use std::sync::Mutex;

/// A collective that every group does at the same time.
#[derive(Clone, Copy, Debug)]
pub struct GroupedCollective<'a> {
    /// The collective.
    pub collective: Collective,
    /// The number of elements: of the whole buffer, or of one block where the collective is made of blocks.
    pub count: usize,
    /// The type of the elements.
    pub dtype: DType,
    /// The groups.
    pub among: &'a RankGroups,
}

/// When the two ends of a message are done, counted from the moment at which both are ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageTimes {
    /// When the message has left its sender.
    pub left: Picos,
    /// When the message has arrived.
    pub arrived: Picos,
}

/// Times exchanges from the moment at which all ranks have entered them.
pub trait ExchangeModel: Send {
    /// The time of a collective.
    ///
    /// # Errors
    /// A collective that cannot be timed.
    fn collective(&mut self, call: GroupedCollective) -> Result<Picos>;

    /// The times of a message of `bytes` bytes from each pair's first rank, among `ranks` ranks, to its second.
    ///
    /// # Errors
    /// Messages that cannot be timed.
    fn message(&mut self, pairs: &[(Rank, Rank)], ranks: u32, bytes: u64) -> Result<MessageTimes>;

    /// The engines used so far, each once.
    fn engines(&self) -> Vec<String>;
}

/// An exchange model that ranks on several threads use.
pub(crate) trait SharedExchange: Sync {
    /// [`ExchangeModel::collective`].
    fn collective(&self, call: GroupedCollective) -> Result<Picos>;

    /// [`ExchangeModel::message`].
    fn message(&self, pairs: &[(Rank, Rank)], ranks: u32, bytes: u64) -> Result<MessageTimes>;
}

impl SharedExchange for Mutex<&mut dyn ExchangeModel> {
    fn collective(&self, call: GroupedCollective) -> Result<Picos> {
        lock(self).collective(call)
    }

    fn message(&self, pairs: &[(Rank, Rank)], ranks: u32, bytes: u64) -> Result<MessageTimes> {
        lock(self).message(pairs, ranks, bytes)
    }
}
