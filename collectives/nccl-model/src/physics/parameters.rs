//! The physical parameters: their meaning, the source of their values, and the uncertainty of each value.
//!
//! ```text
//! hop x hop.EFA          a parameter family is one general figure and, for each kind, a factor on it:
//! share x share.EFA      a factor for which there are no measurements keeps its value in PARAMETERS
//! ```

use super::super::Protocol;
use allfold_sim::machines::{Fabric, Generation};

/// A parameter of the model. The fit works on the parameter's logarithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// The parameter's name in files.
    pub name: &'static str,
    /// The parameter's unit: `us`, `GB/s` or `times`.
    pub unit: &'static str,
    /// The parameter's value before a fit.
    pub value: f64,
    /// The uncertainty of `value`, as a standard deviation of its logarithm.
    pub std_dev: f64,
    /// The source of the value before fitting.
    pub source: &'static str,
}

/// The meaning of each family of parameters.
const MEANINGS: [(&str, &str); 15] = [
    ("launch", "the host's time to launch a call"),
    ("base", "time before a call's first byte, relative to NCCL's tuner"),
    ("step", "time of a step inside a node, relative to NCCL's tuner"),
    ("hop", "time of a step between nodes"),
    ("share", "share of the NICs' nominal speed that is reached"),
    ("socket", "speed of a NIC by TCP sockets"),
    ("link", "share of the nominal speed of the links in a node that is reached"),
    ("nvls", "share of a GPU's port that switches which reduce reach"),
    ("tree", "speed of trees relative to rings"),
    ("fill", "time to fill a pipeline of chunks"),
    ("extra", "time to agree on a large message before it is sent (rendezvous)"),
    ("p2p", "sends and receives of an all-to-all"),
    ("ring", "what a ring's step takes more, relative to a step"),
    ("first", "what the first size of a run takes more"),
    ("match", "copies where the host matches messages"),
];

impl Parameter {
    /// What the parameter says about a machine; of a factor within its family, such as `hop.RoCE`, also for which kind.
    pub fn meaning(&self) -> String {
        let (family, kind) = self.name.split_once('.').unwrap_or((self.name, ""));
        let meaning = MEANINGS.iter().find(|(name, _)| *name == family).map_or("", |(_, meaning)| meaning);
        if kind.is_empty() { meaning.into() } else { format!("{meaning}; {kind}") }
    }
}

const fn p(
    name: &'static str,
    unit: &'static str,
    value: f64,
    std_dev: f64,
    source: &'static str,
) -> Parameter {
    Parameter { name, unit, value, std_dev, source }
}

const TUNER: &str = "NCCL 2.29 src/graph/tuning.cc";
const KIND: &str = "as the general figure";
const NOMINAL: &str = "the nominal speed";
const GUESS: &str = "order of magnitude";

/// The number of parameters.
pub const COUNT: usize = 61;

/// All parameters. A parameter's number is its index in this list.
pub const PARAMETERS: [Parameter; COUNT] = [
    p("launch.gpu", "us", 4.2, 0.1, "host time to launch on one GPU more of the same process: nccl-tests -g"),
    p("launch.channel", "us", 0.2, 0.4, "host time for each channel of a launch"),
    p("base.LL", "times", 1.0, 0.3, TUNER),
    p("base.LL128", "times", 0.6, 0.4, TUNER),
    p("base.Simple", "times", 1.0, 0.4, TUNER),
    p("step.LL", "times", 1.0, 0.3, TUNER),
    p("step.LL128", "times", 1.0, 0.4, TUNER),
    p("step.Simple", "times", 1.0, 0.4, TUNER),
    p("hop", "us", 6.0, 0.3, "NCCL 2.29 src/graph/tuning.cc: 5 us by a tree with LL"),
    p("hop.sockets", "times", 4.0, 0.6, "system calls and copies on both sides"),
    p("hop.TCPXO", "times", 5.0, 0.8, "TCP's receive path without copies"),
    p("hop.TCPX", "times", 8.0, 1.2, "TCP's receive path without copies"),
    p("hop.EFA", "times", 5.0, 0.5, "EFA's reliable datagrams: about 15 us one way"),
    p("hop.Slingshot", "times", 1.0, 0.4, KIND),
    p("hop.RoCE", "times", 1.0, 0.4, KIND),
    p("hop.InfiniBand", "times", 0.8, 0.4, KIND),
    p("hop.unknown", "times", 1.0, 0.4, KIND),
    p("hop.LL128", "times", 1.3, 0.4, "NCCL 2.29 src/graph/tuning.cc: 8.5 us to LL's 5"),
    p("hop.Simple", "times", 1.8, 0.4, "NCCL 2.29 src/graph/tuning.cc: 14 us to LL's 5"),
    p("share", "times", 0.95, 0.02, NOMINAL),
    p("share.sockets", "times", 1.0, 0.05, KIND),
    p("share.TCPXO", "times", 1.0, 0.1, KIND),
    p("share.TCPX", "times", 1.0, 0.2, KIND),
    p("share.EFA", "times", 1.0, 0.2, KIND),
    p("share.Slingshot", "times", 1.0, 0.15, KIND),
    p("share.RoCE", "times", 1.0, 0.1, KIND),
    p("share.InfiniBand", "times", 1.0, 0.05, KIND),
    p("share.unknown", "times", 1.0, 0.05, KIND),
    p("share.copied", "times", 0.6, 0.3, "copied once more, through host memory"),
    p("socket", "GB/s", 4.5, 0.5, "a NIC's sockets, a core or two"),
    p("link.Volta", "times", 1.0, 0.1, NOMINAL),
    p("link.Ampere", "times", 1.0, 0.1, NOMINAL),
    p("link.Hopper", "times", 1.0, 0.1, NOMINAL),
    p("link.Blackwell", "times", 0.95, 0.15, NOMINAL),
    p("link.CDNA", "times", 0.8, 0.2, NOMINAL),
    p("link.PCIe", "times", 0.83, 0.03, "20 of 24 GB/s by two L40S of one host"),
    p(
        "link.copied",
        "times",
        0.58,
        0.3,
        "every byte through host memory: 28 of 48 GB/s by 8 RTX 5090 (NVIDIA/nccl issue 1639)",
    ),
    p(
        "link.bridges",
        "times",
        1.0,
        0.03,
        "more than two cards write through host bridges: 20 of 24 GB/s by three A100 (NVIDIA/nccl-tests issue 178), 24.7 by five RTX 4090",
    ),
    p("link.pairs", "times", 0.94, 0.1, "rings over links of pairs leave some idle"),
    p("nvls", "times", 0.75, 0.2, "NCCL 2.29 src/graph/tuning.cc: 0.85 x 15/16 of the port"),
    p("nvls.step", "times", 0.6, 0.4, TUNER),
    p("tree", "times", 0.92, 0.1, TUNER),
    p("fill", "times", 0.3, 0.8, GUESS),
    p("extra", "us", 1.0, 0.5, GUESS),
    p("extra.sockets", "times", 3.0, 0.7, KIND),
    p("extra.TCPXO", "times", 3.0, 0.7, KIND),
    p("extra.TCPX", "times", 3.0, 0.7, KIND),
    p("extra.EFA", "times", 3.0, 0.7, KIND),
    p("extra.Slingshot", "times", 6.0, 0.7, "asks first beyond its eager limit"),
    p("extra.RoCE", "times", 1.0, 0.7, KIND),
    p("extra.InfiniBand", "times", 1.0, 0.7, KIND),
    p("extra.unknown", "times", 1.0, 0.7, KIND),
    p("p2p", "times", 0.85, 0.2, "sends and receives in a group use fewer channels than rings"),
    p("p2p.peer", "us", 0.3, 0.5, "order of magnitude: a message more of a group"),
    p("first", "times", 1.03, 0.03, "the first size of a run carries warm-up"),
    p("match", "us", 6.5, 0.5, "a copy by CUDA's driver: 6 to 7 us (README of NVIDIA's gdrcopy)"),
    p("match.rate", "GB/s", 4.0, 0.7, "the same from pageable memory: order of magnitude"),
    p("step.NVLink5", "times", 1.2, 0.3, "a store's way through NVLink 5 and its switch: order of magnitude"),
    p("ring.end", "times", 0.4, 0.5, "order of magnitude"),
    p(
        "ring.bytes",
        "times",
        0.08,
        0.5,
        "order of magnitude: more instructions to add a byte than a wider number",
    ),
    p("p2p.copy", "GB/s", 800.0, 0.5, "32 channels, each copying 25 GB/s: order of magnitude"),
];

pub(super) const LAUNCH: usize = 0;
pub(super) const LAUNCH_CHANNEL: usize = 1;
pub(super) const BASE: usize = 2;
pub(super) const STEP: usize = 5;
pub(super) const HOP: usize = 8;
pub(super) const HOP_LL128: usize = 17;
pub(super) const HOP_SIMPLE: usize = 18;
pub(super) const SHARE: usize = 19;
pub(super) const SHARE_COPIED: usize = 28;
pub(super) const SOCKET: usize = 29;
pub(super) const LINK: usize = 30;
pub(super) const LINK_PCIE: usize = 35;
pub(super) const LINK_COPIED: usize = 36;
pub(super) const LINK_BRIDGES: usize = 37;
pub(super) const LINK_PAIRS: usize = 38;
pub(super) const NVLS: usize = 39;
pub(super) const NVLS_STEP: usize = 40;
pub(super) const TREE: usize = 41;
pub(super) const FILL: usize = 42;
pub(super) const EXTRA: usize = 43;
pub(super) const P2P: usize = 52;
pub(super) const P2P_PEER: usize = 53;
pub(super) const FIRST: usize = 54;
pub(super) const MATCH: usize = 55;
pub(super) const MATCH_RATE: usize = 56;
pub(super) const STEP_NVLINK5: usize = 57;
pub(super) const RING_END: usize = 58;
pub(super) const RING_BYTES: usize = 59;
pub(super) const P2P_COPY: usize = 60;

/// The number of the parameter for the links of a GPU generation.
pub(super) const fn link(generation: Generation) -> usize {
    LINK + generation as usize
}

/// A value for every parameter, in the order of [`PARAMETERS`].
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    values: Vec<f64>,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters { values: PARAMETERS.iter().map(|parameter| parameter.value).collect() }
    }
}

impl Parameters {
    /// Parameters from the logarithms of their values.
    pub fn from_logs(logs: &[f64]) -> Parameters {
        Parameters { values: logs.iter().map(|log| log.exp()).collect() }
    }

    /// The logarithms of all values.
    pub fn logs(&self) -> Vec<f64> {
        self.values.iter().map(|value| value.ln()).collect()
    }

    /// The value of the parameter with this number; 1 if there is none.
    pub fn at(&self, number: usize) -> f64 {
        self.values.get(number).copied().unwrap_or(1.0)
    }

    /// Sets the value of the parameter with this number.
    pub fn set(&mut self, number: usize, value: f64) {
        if let Some(place) = self.values.get_mut(number) {
            *place = value;
        }
    }

    pub(super) fn of_protocol(&self, first: usize, protocol: Protocol) -> f64 {
        self.at(first + protocol as usize)
    }

    /// The general figure of a parameter family times the factor of `fabric`, whose factors are behind it; without a fabric, the general figure alone.
    pub(super) fn family(&self, general: usize, fabric: Option<Fabric>) -> f64 {
        self.at(general) * fabric.map_or(1.0, |fabric| self.at(general + 1 + fabric as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_in_the_order_of_fabrics_and_generations() {
        for fabric in Fabric::ALL {
            let kind = fabric.name().split(' ').next().unwrap();
            for (general, family) in [(HOP, "hop"), (SHARE, "share"), (EXTRA, "extra")] {
                assert_eq!(PARAMETERS[general + 1 + fabric as usize].name, format!("{family}.{kind}"));
            }
        }
        use Generation::{Ampere, Blackwell, Cdna, Hopper, Volta};
        for generation in [Volta, Ampere, Hopper, Blackwell, Cdna] {
            let name = PARAMETERS[link(generation)].name;
            assert!(name.eq_ignore_ascii_case(&format!("link.{generation:?}")), "{name}");
        }
    }
}
