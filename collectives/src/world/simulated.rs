//! Worlds on virtual time.

use super::description::World;
use super::kind::OnVirtualTime;
use crate::backends::sim::Options;
use allfold_sim::{Costs, Device, Faults, Sharing, Topology};
use std::time::Duration;

impl World<OnVirtualTime> {
    /// Ranks that are threads carrying real data on a virtual clock, one for each rank of the topology. The same
    /// program has the same times and the same bits on any machine.
    ///
    /// Rank code may block only in Allfold's calls. By default costs are the topology's, messages share links evenly,
    /// computation is that of an A100 in f32, there are no faults, and operations have no deadline: ranks that wait
    /// for each other for ever get [`crate::Error::Deadlock`] at once.
    pub fn sim(topology: &Topology) -> World<OnVirtualTime> {
        let options = Options {
            topology: topology.clone(),
            costs: topology.costs(),
            sharing: Sharing::default(),
            faults: Faults::NONE,
            device: Device::default(),
            deadline: None,
            watchdog: Duration::from_secs(300),
            timeline: false,
        };
        World::of(topology.ranks(), OnVirtualTime(Box::new(options)))
    }

    /// The device model that gives the time of the work passed to [`crate::Communicator::charge`].
    pub fn device(mut self, device: Device) -> World<OnVirtualTime> {
        self.kind.0.device = device;
        self
    }

    /// The costs of messages, launches and reductions.
    pub fn costs(mut self, costs: Costs) -> World<OnVirtualTime> {
        self.kind.0.costs = costs;
        self
    }

    /// The faults of ranks and links.
    pub fn faults(mut self, faults: Faults) -> World<OnVirtualTime> {
        self.kind.0.faults = faults;
        self
    }

    /// How messages share links.
    pub fn sharing(mut self, sharing: Sharing) -> World<OnVirtualTime> {
        self.kind.0.sharing = sharing;
        self
    }

    /// Records what every rank computes and communicates, as [`crate::Report::timeline`].
    pub fn timeline(mut self) -> World<OnVirtualTime> {
        self.kind.0.timeline = true;
        self
    }

    /// Once a rank was busy outside of Allfold's calls for this much real time while all others waited, the calls of all ranks fail with
    /// [`crate::Error::Unresponsive`], which names the busy ranks. The default is five minutes.
    pub fn watchdog(mut self, timeout: Duration) -> World<OnVirtualTime> {
        self.kind.0.watchdog = timeout;
        self
    }
}
