//! The causes for which a run is slow, each with what mends it and what proves it.

use std::fmt;

/// A cause for which a run is slow, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlowCause {
    /// Nothing is wrong.
    Healthy,
    /// NICs do not access GPU memory; bytes are copied through the host's memory.
    NoGpuDirect,
    /// GPUs of a node do not write into each other's memory.
    NoPeer,
    /// A part of the NICs is not used.
    NicsMissing,
    /// One NIC of a node is used.
    OneRail,
    /// One algorithm is forced.
    Algorithm,
    /// One protocol is forced.
    Protocol,
    /// LL128 is not used where the links allow it.
    NoLl128,
    /// NVLink switches do not reduce.
    NoNvls,
    /// Fewer channels run than NCCL would choose.
    FewChannels,
    /// TCP sockets are used in place of the network's own protocol.
    Sockets,
    /// Links or NICs run below their speed, of one rank or of all.
    SlowLinks,
    /// One rank comes late to every call.
    LateRank,
}

/// What is said of a cause.
struct Words {
    name: &'static str,
    mend: &'static str,
    proof: &'static str,
}

impl SlowCause {
    /// All causes but [`SlowCause::Healthy`].
    pub const ALL: [SlowCause; 12] = [
        SlowCause::NoGpuDirect,
        SlowCause::NoPeer,
        SlowCause::NicsMissing,
        SlowCause::OneRail,
        SlowCause::Algorithm,
        SlowCause::Protocol,
        SlowCause::NoLl128,
        SlowCause::NoNvls,
        SlowCause::FewChannels,
        SlowCause::Sockets,
        SlowCause::SlowLinks,
        SlowCause::LateRank,
    ];

    const fn words(self) -> Words {
        let (name, mend, proof) = match self {
            SlowCause::Healthy => ("healthy", "nothing", "a second run of the same sizes"),
            SlowCause::NoGpuDirect => (
                "GPUDirect RDMA off",
                "load nvidia-peermem (or use DMA-BUF) and set NCCL_NET_GDR_LEVEL=SYS",
                "NCCL_DEBUG=INFO: channels `via NET/IB/..` lack `/GDRDMA`",
            ),
            SlowCause::NoPeer => (
                "peer-to-peer off",
                "unset NCCL_P2P_DISABLE; switch ACS off in the bridges and the IOMMU to pass-through",
                "NCCL_DEBUG=INFO: channels `via SHM` in place of `via P2P`; p2pBandwidthLatencyTest",
            ),
            SlowCause::NicsMissing => (
                "NICs missing",
                "unset NCCL_IB_HCA, or list every NIC in it; check the state of the ports with ibstat",
                "NCCL_DEBUG=INFO: the NICs of the line `NET/IB : Using`",
            ),
            SlowCause::OneRail => (
                "one rail only",
                "unset NCCL_IB_HCA, or list every NIC in it; check the state of the ports with ibstat",
                "NCCL_DEBUG=INFO: the line `NET/IB : Using` names one NIC",
            ),
            SlowCause::Algorithm => (
                "wrong algorithm",
                "unset NCCL_ALGO",
                "the same sizes with NCCL_ALGO unset; NCCL_DEBUG_SUBSYS=TUNING names each call's algorithm",
            ),
            SlowCause::Protocol => (
                "wrong protocol",
                "unset NCCL_PROTO",
                "the same sizes with NCCL_PROTO unset; NCCL_DEBUG_SUBSYS=TUNING names each call's protocol",
            ),
            SlowCause::NoLl128 => (
                "LL128 off",
                "unset NCCL_PROTO and NCCL_LL128_BUFFSIZE; put NICs and GPUs behind the same PCIe switches",
                "the same sizes with NCCL_PROTO=LL128",
            ),
            SlowCause::NoNvls => (
                "NVLS off",
                "set NCCL_NVLS_ENABLE=1 and start the fabric manager; containers need /dev/nvidia-caps-imex-channels",
                "NCCL_DEBUG=INFO: `NVLS multicast support is not available`",
            ),
            SlowCause::FewChannels => (
                "few channels",
                "unset NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS",
                "NCCL_DEBUG=INFO: the number before `coll channels`",
            ),
            SlowCause::Sockets => (
                "sockets in place of RDMA",
                "unset NCCL_IB_DISABLE and NCCL_NET; give the container /dev/infiniband, or load the network's plug-in",
                "NCCL_DEBUG=INFO: channels `via NET/Socket`",
            ),
            SlowCause::SlowLinks => (
                "slow links or a slow NIC",
                "reseat or replace what `lspci -vv` (LnkSta), `ibstat` (Rate) or `nvidia-smi nvlink -s` shows below its speed",
                "`lspci -vv` and `ibstat` on every node; the run on each pair of nodes alone names a single slow one",
            ),
            SlowCause::LateRank => (
                "a rank that comes late",
                "bind processes to cores and stop other work on the host; check clocks by `nvidia-smi -q -d PERFORMANCE`",
                "nccl-tests' minimum, mean and maximum over ranks (-a 2, 1, 3): they differ; each node alone is fast but one",
            ),
        };
        Words { name, mend, proof }
    }

    /// The cause's name.
    pub const fn name(self) -> &'static str {
        self.words().name
    }

    /// The setting or the repair that mends it.
    pub const fn mend(self) -> &'static str {
        self.words().mend
    }

    /// The setting or the measurement that shows whether it is the cause.
    pub const fn proof(self) -> &'static str {
        self.words().proof
    }

    /// Whether a choice of algorithm or protocol alone mends it.
    pub const fn is_choice(self) -> bool {
        matches!(self, SlowCause::Algorithm | SlowCause::Protocol | SlowCause::NoLl128)
    }
}

impl fmt::Display for SlowCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
