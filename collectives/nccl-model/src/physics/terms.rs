//! The terms of the model, each of which can be switched off.

use allfold_sim::suggest::unknown;

/// One term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelTerm {
    /// A process launches on one GPU after the other; a call takes at least that long.
    HostLaunch,
    /// A hop takes the time that was fitted for this family of NICs; without this term, the time that was fitted for all NICs.
    NicFamily,
    /// The fraction of their nominal speed that links reach.
    LinkEfficiency,
    /// Without GPUDirect, bytes are copied through the host's memory.
    HostStaging,
    /// Sockets reach what a core's TCP does.
    Sockets,
    /// A chunk fills every hop of a tree before the next follows.
    PipelineFill,
    /// Messages beyond a NIC's eager limit ask first.
    Rendezvous,
    /// A host that matches messages to buffers copies them one after the other.
    HostMatching,
    /// With more nodes, messages slow each other down.
    Congestion,
    /// The first size of a run carries warm-up.
    FirstCall,
}

impl ModelTerm {
    /// All terms.
    pub const ALL: [ModelTerm; 10] = [
        ModelTerm::HostLaunch,
        ModelTerm::NicFamily,
        ModelTerm::LinkEfficiency,
        ModelTerm::HostStaging,
        ModelTerm::Sockets,
        ModelTerm::PipelineFill,
        ModelTerm::Rendezvous,
        ModelTerm::HostMatching,
        ModelTerm::Congestion,
        ModelTerm::FirstCall,
    ];

    /// The term's name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            ModelTerm::HostLaunch => "host-launch",
            ModelTerm::NicFamily => "nic-family",
            ModelTerm::LinkEfficiency => "link-efficiency",
            ModelTerm::HostStaging => "host-staging",
            ModelTerm::Sockets => "sockets",
            ModelTerm::PipelineFill => "pipeline-fill",
            ModelTerm::Rendezvous => "rendezvous",
            ModelTerm::HostMatching => "host-matching",
            ModelTerm::Congestion => "congestion",
            ModelTerm::FirstCall => "first-call",
        }
    }

    /// The term of a name.
    ///
    /// # Errors
    /// Says the nearest name.
    pub fn named(name: &str) -> Result<ModelTerm, String> {
        let found = ModelTerm::ALL.into_iter().find(|term| term.name() == name);
        found.ok_or_else(|| unknown("term", name, &ModelTerm::ALL.map(ModelTerm::name)))
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
    /// These terms without `term`.
    pub fn without(self, term: ModelTerm) -> Terms {
        Terms(self.0 & !(1 << term as u32))
    }

    /// Whether a term is on.
    pub fn has(self, term: ModelTerm) -> bool {
        self.0 & (1 << term as u32) != 0
    }
}
