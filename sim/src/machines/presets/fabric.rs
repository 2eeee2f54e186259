//! The fabrics between nodes that presets can name, with their latency and achievable bandwidth.

use crate::{Error, Result, suggest};

/// The figures of a fabric, under the name that presets and the option `fabric=` use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FabricFigures {
    /// The fabric's name.
    pub name: &'static str,
    /// Latency from NIC to NIC with the LL protocol, in nanoseconds.
    pub nanos: u64,
    /// The share of the port's speed that payload bytes achieve.
    pub share: f64,
    /// The source of these figures.
    pub source: &'static str,
}

const fn fabric(name: &'static str, nanos: u64, share: f64, source: &'static str) -> FabricFigures {
    FabricFigures { name, nanos, share, source }
}

/// Every fabric that presets can name.
pub const FABRIC_FIGURES: [FabricFigures; 7] = [
    fabric(
        "InfiniBand",
        2_700,
        1.0,
        "NCCL's tuner (tuning.cc): a ring's step across nodes, LL; nominal speed",
    ),
    fabric("RoCE", 3_800, 1.0, "latency fitted to published nccl-tests runs on OCI (RoCE); nominal speed"),
    fabric(
        "Slingshot",
        5_000,
        1.0,
        "latency fitted to published nccl-tests runs on Polaris and Alps; nominal speed",
    ),
    fabric(
        "EFA",
        35_000,
        1.0,
        "latency fitted to published nccl-tests runs on EFA (29 to 67 us); nominal speed",
    ),
    fabric("TCPX", 52_000, 1.0, "latency as fitted for TCPXO; nominal speed"),
    fabric("TCPXO", 52_000, 1.0, "latency fitted to published nccl-tests runs on a3-mega; nominal speed"),
    fabric(
        "TCP",
        22_000,
        0.4,
        "latency (15 to 29 us) and speed (0.13 to 0.40 of the port) fitted to published runs over sockets",
    ),
];

/// The fabric called `name`, in any case; `ib` is InfiniBand.
pub(super) fn named(name: &str) -> Result<FabricFigures> {
    let wanted = if name.eq_ignore_ascii_case("ib") { "InfiniBand" } else { name };
    FABRIC_FIGURES.into_iter().find(|fabric| fabric.name.eq_ignore_ascii_case(wanted)).ok_or_else(|| {
        let names: Vec<&str> = FABRIC_FIGURES.iter().map(|fabric| fabric.name).collect();
        Error::Topology(suggest::unknown("fabric", name, &names))
    })
}
