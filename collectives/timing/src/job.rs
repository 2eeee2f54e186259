//! What is to be timed.

use super::Error;
use allfold_schedules::schedule::Schedule;
use allfold_schedules::{Collective, Geometry};
use allfold_sim::fault::Paced;
use allfold_sim::{Costs, Faults, Picos, Rank, Sharing, Topology};

static NOTHING_WRONG: Faults = Faults::NONE;

/// A collective to be timed.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// The schedule.
    pub schedule: &'a dyn Schedule,
    /// How the buffer is cut.
    pub geometry: &'a Geometry,
    /// Bytes per element.
    pub element: u32,
    /// Over which links.
    pub topology: &'a Topology,
    /// What messages and reductions cost beside the links.
    pub costs: Costs,
    /// How many steps of a rank may be under way; 1 or more.
    pub window: u32,
    /// How messages share a link.
    pub sharing: LinkSharing,
    /// The faults of ranks and links.
    pub faults: &'a Faults,
    /// How long it may take: a rank that is not done by then is told whom it waits for.
    pub deadline: Option<Picos>,
    /// What the schedule computes, where that is known: the time is then also held against what any algorithm for
    /// it must move.
    pub collective: Option<Collective>,
}

impl<'a> Job<'a> {
    /// A job with the defaults of everything else: the costs of the topology, a window of one step, links split
    /// evenly, nothing wrong.
    pub fn new(
        schedule: &'a dyn Schedule,
        geometry: &'a Geometry,
        element: u32,
        topology: &'a Topology,
    ) -> Job<'a> {
        Job {
            schedule,
            geometry,
            element,
            topology,
            costs: topology.costs(),
            window: 1,
            sharing: LinkSharing::default(),
            faults: &NOTHING_WRONG,
            deadline: None,
            collective: None,
        }
    }

    /// What messages, launches and reductions cost on a rank; a message's overhead is its sender's.
    pub fn costs_of(&self, rank: Rank) -> Costs {
        self.faults.costs(rank, &self.costs)
    }

    /// When a rank has launched the operation and takes its first step.
    pub(crate) fn launched(&self, rank: Rank) -> Picos {
        let launch = self.costs_of(rank).launch + self.faults.jitter(rank, Paced::Launch, 0, Picos::ZERO);
        self.faults.takes(rank, Picos::ZERO, launch)
    }

    /// How flows share a link, for engines that know no other way.
    pub(crate) fn flows(&self) -> Result<Sharing, Error> {
        match self.sharing {
            LinkSharing::Flows(sharing) => Ok(sharing),
            LinkSharing::Serial => Err(Error::Job(
                "serial_links: links that serve one message at a time are timed by engine `auto` or `full`, without a \
                 trace; else share links (`split`)".into(),
            )),
        }
    }

    /// Whether the parts belong together and the numbers fit.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (ranks, joined) = (self.schedule.ranks(), self.topology.ranks());
        if ranks != joined {
            return Err(Error::Job(format!(
                "the schedule is for {ranks} ranks and the topology joins {joined}; build both for the same number"
            )));
        }
        if self.window == 0 {
            return Err(Error::Job("a window of 0 steps never starts; give 1 or more".into()));
        }
        let bytes = self.geometry.count().checked_mul(u64::from(self.element));
        bytes.map(|_| ()).ok_or(Error::Overflow("the buffer's size in bytes"))
    }
}

/// How the messages that want one link share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSharing {
    /// All of them flow at once.
    Flows(Sharing),
    /// Links serve one message at a time, in the order of a timetable that is made from the schedule: another model, found much
    /// faster for large trees. Every rank is stepped. For pipelines with few steps per rank, without faults.
    Serial,
}

impl Default for LinkSharing {
    fn default() -> LinkSharing {
        LinkSharing::Flows(Sharing::default())
    }
}

impl From<Sharing> for LinkSharing {
    fn from(sharing: Sharing) -> LinkSharing {
        LinkSharing::Flows(sharing)
    }
}

impl LinkSharing {
    /// The name in records and of flags.
    pub const fn name(self) -> &'static str {
        match self {
            LinkSharing::Flows(Sharing::MaxMin) => "max_min",
            LinkSharing::Flows(Sharing::Split) => "split",
            LinkSharing::Serial => "serial_links",
        }
    }
}

/// How to get the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Step every rank.
    Full,
    /// Step every rank over the event queue, also where clocks would do: slower, and the same.
    Events,
    /// Step one rank per symmetry class; refuse where there is no symmetry or chunks are unequal.
    BySymmetry,
    /// One representative per symmetry class, with chunks rounded up to equal sizes;
    /// [`Outcome::rounded`](super::Outcome::rounded) says so.
    BySymmetryRounded,
    /// `BySymmetry` where it applies exactly, else `Full`.
    #[default]
    Auto,
}
