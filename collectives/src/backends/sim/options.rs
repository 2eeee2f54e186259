//! The options of a world on virtual time, and the activities that it records.

use crate::Rank;
use allfold_sim::{Costs, Device, Faults, Picos, Sharing, Topology};
use std::time::Duration;

/// The options of a world on virtual time.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub topology: Topology,
    pub costs: Costs,
    pub sharing: Sharing,
    pub faults: Faults,
    pub device: Device,
    /// How long an operation may take, in virtual time.
    pub deadline: Option<Picos>,
    /// How long, in real time, a rank may be busy outside of Allfold's calls while all others wait.
    pub watchdog: Duration,
    /// Whether the activities of ranks are recorded.
    pub timeline: bool,
}

/// An activity of a rank on virtual time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// The rank, as numbered in the world.
    pub rank: Rank,
    /// 0: the rank's own code; from 1 on: its communication threads, in order of their start.
    pub stream: u32,
    /// `compute`, or the call of the operation.
    pub what: String,
    /// When the activity began.
    pub start: Picos,
    /// When the activity was done.
    pub end: Picos,
    /// Bytes of the messages that the rank sent to other ranks in this activity.
    pub sent: u64,
}
