//! What a message, a collective and a reduction cost in addition to the links they use.
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
    /// Times are kept to the picosecond and rounded up, so that no transfer is faster than its links allow.
    #[default]
    Exact,
    /// Times are truncated as in ASTRA-sim 2: a message takes `floor_ns(latency + bytes / bandwidth)`, each pass of a reduction
    /// `floor_ns(bytes / memory)`. Only for comparison with ASTRA-sim: a transfer can be a nanosecond too fast.
    WholeNanos,
}

/// How the flows on a link share its bandwidth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Max-min fair: bandwidth that a flow cannot use, because another link limits the flow, is given to the other flows. When a
    /// flow begins or ends, the rates of all flows that it reaches over shared links, directly or through other flows, are computed
    /// again.
    MaxMin,
    /// Every link divides its bandwidth evenly among its flows, and a flow's rate is the least of its shares. Bandwidth that a flow
    /// leaves unused is lost, so for equal flows no rate exceeds that of max-min; a change concerns only flows on the same links.
    #[default]
    Split,
}

/// The costs of a run. The latency and bandwidth of links belong to the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Costs {
    /// Overhead of each message: how long the channel is occupied before the first byte flows.
    pub overhead: Picos,
    /// Overhead of each collective on each rank, before the rank's first step.
    pub launch: Picos,
    /// Rate of a rank's memory, which limits local moves and reductions; with `None` they take no time.
    pub memory: Option<BytesPerSec>,
    /// How many times a reduction passes its bytes through memory: 3 for two operands read and one result written.
    pub reduce_passes: u64,
    /// Whether times are picoseconds or ASTRA-sim's whole nanoseconds.
    pub rounding: Rounding,
}

impl Default for Costs {
    /// NCCL's defaults. `launch` is the base latency that NCCL's tuner has for a ring with the LL protocol (6.6 us,
    /// `src/graph/tuning.cc`). The tuner's per-step latency is part of the latency of the topology's links, so a message has no
    /// overhead of its own. Reductions are fused into the receive (`recvReduceCopy`) and take no time.
    fn default() -> Costs {
        Costs { launch: Picos(6_600_000), ..Costs::FREE }
    }
}

impl Costs {
    /// Costs of zero for everything except links.
    pub const FREE: Costs = Costs {
        overhead: Picos::ZERO,
        launch: Picos::ZERO,
        memory: None,
        reduce_passes: 3,
        rounding: Rounding::Exact,
    };

    /// The time from the start of a flow to its arrival if the flow shares no link: `latency` is that of the whole path,
    /// `bandwidth` that of the slowest link.
    pub fn transfer(&self, bytes: Bytes, bandwidth: BytesPerSec, latency: Picos) -> Picos {
        self.rounded(latency + bandwidth.time(bytes))
    }

    /// The time in which a receiver combines `bytes` that arrived with its own.
    pub fn reduce(&self, bytes: Bytes) -> Picos {
        self.pass(bytes) * self.reduce_passes
    }

    /// The time of a rank's local step on `bytes`: a reduction takes `reduce_passes` passes through memory, a copy two (read and
    /// write).
    pub fn local(&self, bytes: Bytes, reduces: bool) -> Picos {
        self.pass(bytes) * if reduces { self.reduce_passes } else { 2 }
    }

    /// A span of time rounded by the run's [`Rounding`]: unchanged, or cut to whole nanoseconds.
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
        // 2,500 B at 1,600 B/ns take 1.56 ns: 1 ns for each pass after truncation, 3 ns for all three.
        assert_eq!(costs.reduce(Bytes(2_500)), Picos::from_nanos(3));
        // The sum of 1.56 ns and 0.5 ns is truncated once, to 2 ns.
        let memory = BytesPerSec(1_600_000_000_000);
        assert_eq!(costs.transfer(Bytes(2_500), memory, Picos(500)), Picos::from_nanos(2));
    }
}
