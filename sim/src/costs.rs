//! What a message, a collective and a reduction cost beside the links they use.
//!
//! ```text
//! posted   start      flow begins              left             arrival        done
//!   |--wait--|--overhead--|====bytes at the=====|----latencies----|---reduce----|
//!            '---- the channel is occupied ----'    of the links     receiver
//!                                 links' rate
//! ```

use crate::{Bytes, BytesPerSec, Picos};
use serde::{Deserialize, Serialize};

/// Whether times are kept to the picosecond or cut to whole nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounding {
    /// To the picosecond, rounded up, so that nothing is ever faster than its links allow.
    #[default]
    Exact,
    /// As ASTRA-sim 2 truncates: a message takes `floor_ns(latency + bytes / bandwidth)`, each pass of a
    /// reduction `floor_ns(bytes / memory)`. Only for comparison with it: it can be a nanosecond too fast.
    WholeNanos,
}

/// How the flows on one link share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Max-min fair: what one flow cannot use, because it is slower elsewhere, others get. Every change re-solves
    /// all flows that are connected to it by shared links.
    MaxMin,
    /// Every link splits evenly among the flows on it and a flow goes at its least share. What a flow leaves
    /// unused is lost, so with the same flows none goes faster than by max-min; a change concerns only the neighbours.
    #[default]
    Split,
}

/// The costs of a run. The latency and bandwidth of links belong to the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Costs {
    /// Per message: the channel is occupied this long before the first byte flows.
    pub overhead: Picos,
    /// Per collective and rank, before its first step.
    pub launch: Picos,
    /// Rate of a rank's memory, which local moves and reductions take; `None`: they are free.
    pub memory: Option<BytesPerSec>,
    /// How many times a reduction passes its bytes through memory: two operands read, one result written is 3.
    pub reduce_passes: u64,
    /// Picoseconds, or ASTRA-sim's whole nanoseconds.
    pub rounding: Rounding,
}

impl Default for Costs {
    /// NCCL's defaults. `launch` is its tuner's base latency of a ring with the LL protocol (6.6 us,
    /// `src/graph/tuning.cc`); the per-step latency of that table lies on the links of the topology, so a message
    /// has no overhead of its own; reductions are fused into the receive (`recvReduceCopy`), hence free.
    fn default() -> Costs {
        Costs { launch: Picos(6_600_000), ..Costs::FREE }
    }
}

impl Costs {
    /// Costs of 0 for everything besides links.
    pub const FREE: Costs = Costs {
        overhead: Picos::ZERO,
        launch: Picos::ZERO,
        memory: None,
        reduce_passes: 3,
        rounding: Rounding::Exact,
    };

    /// From the start of a flow to its arrival on links that it has for itself: `latency` over the whole path,
    /// `bandwidth` of the slowest link.
    pub fn transfer(&self, bytes: Bytes, bandwidth: BytesPerSec, latency: Picos) -> Picos {
        self.rounded(latency + bandwidth.time(bytes))
    }

    /// The receiver's time to combine `bytes` that arrived with its own.
    pub fn reduce(&self, bytes: Bytes) -> Picos {
        self.pass(bytes) * self.reduce_passes
    }

    /// The time of a step of a rank with itself: a reduction costs what [`Costs`] says, a copy is read once and written once.
    pub fn local(&self, bytes: Bytes, reduces: bool) -> Picos {
        self.pass(bytes) * if reduces { self.reduce_passes } else { 2 }
    }

    /// A span of time as this run keeps it: unchanged, or cut to whole nanoseconds.
    pub fn rounded(&self, span: Picos) -> Picos {
        match self.rounding {
            Rounding::Exact => span,
            Rounding::WholeNanos => Picos(span.0 / 1_000 * 1_000),
        }
    }

    fn pass(&self, bytes: Bytes) -> Picos {
        self.memory.map_or(Picos::ZERO, |memory| self.rounded(memory.time(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reduction_passes_memory_three_times_and_is_free_without_a_memory() {
        let costs = Costs { memory: Some(BytesPerSec(1_000_000_000)), ..Costs::FREE };
        assert_eq!(costs.reduce(Bytes(1_000)), Picos::from_micros(3));
        assert_eq!(costs.local(Bytes(1_000), false), Picos::from_micros(2));
        assert_eq!(Costs::FREE.reduce(Bytes(1_000)), Picos::ZERO);
    }

    #[test]
    fn whole_nanoseconds_cut_a_message_once_and_a_reduction_per_pass() {
        let costs = Costs {
            memory: Some(BytesPerSec(1_600_000_000_000)),
            rounding: Rounding::WholeNanos,
            ..Costs::FREE
        };
        // 2,500 B at 1,600 B/ns is 1.56 ns: 1 ns a pass, 3 in all.
        assert_eq!(costs.reduce(Bytes(2_500)), Picos::from_nanos(3));
        // 1.56 ns + 0.5 ns is cut once, to 2 ns.
        let memory = BytesPerSec(1_600_000_000_000);
        assert_eq!(costs.transfer(Bytes(2_500), memory, Picos(500)), Picos::from_nanos(2));
    }
}
