//! The terms of the physical model, each of which can be switched off.

use allfold_sim::suggest::unknown;

allfold_sim::named! {
    /// A term of the physical model.
    pub enum ModelTerm {
        /// A process launches on one GPU after another, and a call takes at least that long.
        HostLaunch = "host-launch",
        /// The time of a hop, of a rendezvous and the bandwidth of NICs are those of the NICs' family; without this term, the general
        /// figures of all NICs.
        NicFamily = "nic-family",
        /// Links reach only a fraction of their nominal speed.
        LinkEfficiency = "link-efficiency",
        /// Without GPUDirect, bytes are copied through host memory.
        HostStaging = "host-staging",
        /// Sockets are limited to the TCP bandwidth of a CPU core.
        Sockets = "sockets",
        /// The first chunk passes every hop of a tree before the pipeline is full, which takes additional time.
        PipelineFill = "pipeline-fill",
        /// The time before a call's first byte is a number of the GPU's clock cycles.
        GpuClock = "gpu-clock",
        /// The last step of a ring only receives, so that a channel sends nothing meanwhile.
        RingEnd = "ring-end",
        /// A rank's own part of an all-to-all is copied in its memory by the channels that send the others.
        OwnPart = "own-part",
        /// Messages beyond a NIC's eager limit use a rendezvous.
        Rendezvous = "rendezvous",
        /// A host that matches messages to buffers copies them one after another.
        HostMatching = "host-matching",
        /// On more than 64 nodes, messages slow each other down.
        Congestion = "congestion",
        /// The first size of a run includes warm-up.
        FirstCall = "first-call",
    }
}

impl ModelTerm {
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
