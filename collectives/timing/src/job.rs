//! The input of the timing engines: a collective with its topology, costs and faults.

use super::Error;
use allfold_schedules::schedule::Schedule;
use allfold_schedules::{Collective, Geometry};
use allfold_sim::fault::Paced;
use allfold_sim::{Costs, Faults, Picos, Rank, Sharing, Topology};

static NOTHING_WRONG: Faults = Faults::NONE;

/// A collective to be timed.
#[derive(Clone, Copy)]
pub struct Job<'a> {
    /// The schedule to be timed.
    pub schedule: &'a dyn Schedule,
    /// How the buffer is cut into chunks.
    pub geometry: &'a Geometry,
    /// The size of an element in bytes.
    pub element: u32,
    /// The links between the ranks.
    pub topology: &'a Topology,
    /// The costs of messages and reductions in addition to the links.
    pub costs: Costs,
    /// How many steps of a rank may be in flight at once; 1 or more.
    pub window: u32,
    /// How messages share a link.
    pub sharing: LinkSharing,
    /// The fault rules for ranks and links.
    pub faults: &'a Faults,
    /// The longest time that the collective may take; a rank that is not done by then reports what it waits for.
    pub deadline: Option<Picos>,
    /// The collective that the schedule computes, if known. The time is then also compared with the bound for every algorithm of
    /// that collective.
    pub collective: Option<Collective>,
}

impl<'a> Job<'a> {
    /// A job with default values: the costs of the topology, a window of one step, links split evenly, no faults.
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

    /// The costs of messages, launches and reductions on `rank`; a message's overhead is its sender's.
    pub fn costs_of(&self, rank: Rank) -> Costs {
        self.faults.costs(rank, &self.costs)
    }

    /// When `rank` has launched the operation and begins its first step.
    pub(crate) fn launched(&self, rank: Rank) -> Picos {
        let launch = self.costs_of(rank).launch + self.faults.jitter(rank, Paced::Launch, 0, Picos::ZERO);
        self.faults.takes(rank, Picos::ZERO, launch)
    }

    /// How flows share a link; an error for [`LinkSharing::Serial`], which most engines do not support.
    pub(crate) fn flows(&self) -> Result<Sharing, Error> {
        match self.sharing {
            LinkSharing::Flows(sharing) => Ok(sharing),
            LinkSharing::Serial => Err(Error::Job(
                "serial_links: links that serve one message at a time are timed by engine `auto` or `full`, without a \
                 trace; else share links (`split`)".into(),
            )),
        }
    }

    /// Checks that the parts of the job fit together and that the numbers fit 64 bits.
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

/// How messages that need the same link at the same time share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSharing {
    /// All messages flow at the same time and divide the link's bandwidth.
    Flows(Sharing),
    /// A link serves one message at a time, in the order of a timetable made from the schedule. This is a different model from
    /// shared links, and much faster to compute for large trees. Every rank is stepped. For pipelines with few steps per rank,
    /// without faults.
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
    /// The name of the sharing in records and flags.
    pub const fn name(self) -> &'static str {
        match self {
            LinkSharing::Flows(Sharing::MaxMin) => "max_min",
            LinkSharing::Flows(Sharing::Split) => "split",
            LinkSharing::Serial => "serial_links",
        }
    }
}

/// How to compute the time of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Step every rank, without an event queue if that is exact. Of several equal lanes one is stepped.
    Full,
    /// Step every rank with the event queue, even if clocks would suffice: slower, with the same result.
    Events,
    /// Step one representative per symmetry class; an error if there is no symmetry or chunks are unequal.
    BySymmetry,
    /// Step one representative per symmetry class, with chunks rounded up to equal sizes;
    /// [`Outcome::rounded`](super::Outcome::rounded) then has a value.
    BySymmetryRounded,
    /// `BySymmetry` if it is exact, otherwise `Full`.
    #[default]
    Auto,
}
