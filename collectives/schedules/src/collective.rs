//! The collectives, by name, and what each of them means.

use std::fmt;

/// What a schedule computes. `n` is the number of ranks, `c` a chunk, `home(c)` the rank its block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Collective {
    /// Every rank ends with the reduction over all ranks of the whole buffer.
    AllReduce,
    /// Every rank ends with the root's buffer.
    Broadcast,
    /// Rank r contributes block r; every rank ends with all blocks.
    AllGather,
    /// Rank r ends with the reduction over all ranks of block r.
    ReduceScatter,
    /// The root ends with the reduction over all ranks of the whole buffer.
    Reduce,
    /// Rank r contributes block r; the root ends with all blocks.
    Gather,
    /// Rank r ends with the root's block r.
    Scatter,
    /// Rank r's block s becomes rank s's block r.
    AllToAll,
    /// No rank leaves before every rank has entered. Carries no data.
    Barrier,
    /// Every rank sends its buffer to the next rank and receives the previous rank's (nccl-tests' sendrecv).
    SendRecv,
}

impl Collective {
    /// Every collective, in the order of the wire's numbers.
    pub const ALL: [Collective; 10] = [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Reduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
        Collective::Barrier,
        Collective::SendRecv,
    ];

    /// The name on the command line and in records: `all_reduce`, ...
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::Broadcast => "broadcast",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Reduce => "reduce",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::AllToAll => "all_to_all",
            Collective::Barrier => "barrier",
            Collective::SendRecv => "send_recv",
        }
    }

    /// Whether elements are combined by an operator (sum, product, ..).
    #[inline]
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce)
    }

    /// Whether one rank, the root, plays a part of its own.
    #[inline]
    pub const fn rooted(self) -> bool {
        matches!(self, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter)
    }

    /// Whether the buffer is made of one equal block per rank, so that its total count is `n` times a block's.
    #[inline]
    pub const fn blocked(self) -> bool {
        matches!(
            self,
            Collective::AllGather
                | Collective::ReduceScatter
                | Collective::Gather
                | Collective::Scatter
                | Collective::AllToAll
        )
    }

    /// busbw = algbw x this factor, nccl-tests' convention (doc/PERFORMANCE.md there).
    pub fn bus_factor(self, ranks: u32) -> f64 {
        let n = f64::from(ranks);
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::AllGather
            | Collective::ReduceScatter
            | Collective::AllToAll
            | Collective::Gather
            | Collective::Scatter => (n - 1.0) / n,
            Collective::Broadcast | Collective::Reduce | Collective::SendRecv => 1.0,
            Collective::Barrier => 0.0,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
