//! The key `exchange`.

use serde::{Deserialize, Serialize};

/// How ranks on GPUs sum gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuExchange {
    /// `nccl`, else `device` in one process, else `host`.
    #[default]
    Auto,
    /// NCCL's collectives.
    Nccl,
    /// Allfold's algorithms over NCCL's messages.
    Scheduled,
    /// A fused kernel over the buffers of ranks that share a process or a host.
    Device,
    /// The communicator of the CPUs.
    Host,
}
