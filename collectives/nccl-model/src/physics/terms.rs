//! The terms of the physical model, each of which can be switched off.

use allfold_sim::suggest::unknown;

/// A term of the physical model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelTerm {
    /// A process launches on one GPU after another, and a call takes at least that long.
    HostLaunch,
    /// The time of a hop, of a rendezvous and the bandwidth of NICs are those of the NICs' family; without this term, the general
    /// figures of all NICs.
    NicFamily,
    /// Links reach only a fraction of their nominal speed.
    LinkEfficiency,
    /// Without GPUDirect, bytes are copied through host memory.
    HostStaging,
    /// Sockets are limited to the TCP bandwidth of a CPU core.
    Sockets,
    /// The first chunk passes every hop of a tree before the pipeline is full, which takes additional time.
    PipelineFill,
    /// Messages beyond a NIC's eager limit use a rendezvous.
    Rendezvous,
    /// A host that matches messages to buffers copies them one after another.
    HostMatching,
    /// On more than 64 nodes, messages slow each other down.
    Congestion,
    /// The first size of a run includes warm-up.
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

    /// The term with this name.
    ///
    /// # Errors
    /// An unknown name, with the nearest existing one.
    pub fn named(name: &str) -> Result<ModelTerm, String> {
        let found = ModelTerm::ALL.into_iter().find(|term| term.name() == name);
        found.ok_or_else(|| unknown("term", name, &ModelTerm::ALL.map(ModelTerm::name)))
    }
}

/// The set of terms that are switched on.
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
