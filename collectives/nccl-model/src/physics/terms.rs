//! The terms of the model, each of which can be switched off.

use allfold_sim::suggest::unknown;

/// One term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Term {
    /// A process launches on one GPU after the other; a call lasts no less than that.
    HostLaunch,
    /// A hop takes what it takes by this family of NICs; without it, what it takes in general.
    NicFamily,
    /// What links reach of their nominal speed.
    LinkEfficiency,
    /// Without GPUDirect, bytes are copied through the host's memory.
    HostStaging,
    /// Sockets reach what a core's TCP does.
    Sockets,
    /// A chunk fills every hop of a tree before the next follows.
    PipelineFill,
    /// Messages beyond a NIC's eager limit ask first.
    Rendezvous,
    /// Where the host matches messages to buffers, it copies them one after the other.
    HostMatching,
    /// More nodes get in each other's way.
    Congestion,
    /// The first size of a run carries warm-up.
    FirstCall,
}

impl Term {
    /// All of them.
    pub const ALL: [Term; 10] = [
        Term::HostLaunch,
        Term::NicFamily,
        Term::LinkEfficiency,
        Term::HostStaging,
        Term::Sockets,
        Term::PipelineFill,
        Term::Rendezvous,
        Term::HostMatching,
        Term::Congestion,
        Term::FirstCall,
    ];

    /// What the command line calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Term::HostLaunch => "host-launch",
            Term::NicFamily => "nic-family",
            Term::LinkEfficiency => "link-efficiency",
            Term::HostStaging => "host-staging",
            Term::Sockets => "sockets",
            Term::PipelineFill => "pipeline-fill",
            Term::Rendezvous => "rendezvous",
            Term::HostMatching => "host-matching",
            Term::Congestion => "congestion",
            Term::FirstCall => "first-call",
        }
    }

    /// The term of a name.
    ///
    /// # Errors
    /// Says the nearest name.
    pub fn named(name: &str) -> Result<Term, String> {
        let found = Term::ALL.into_iter().find(|term| term.name() == name);
        found.ok_or_else(|| unknown("term", name, &Term::ALL.map(Term::name)))
    }
}

/// Which terms are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms(u32);

impl Default for Terms {
    fn default() -> Terms {
        Terms(u32::MAX)
    }
}

impl Terms {
    /// All but this one.
    pub fn without(self, term: Term) -> Terms {
        Terms(self.0 & !(1 << term as u32))
    }

    /// Whether a term is on.
    pub fn has(self, term: Term) -> bool {
        self.0 & (1 << term as u32) != 0
    }
}
