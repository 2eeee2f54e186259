//! An algorithm in a crate outside of Allfold: an all-gather by neighbour exchange.
//!
//! Allfold takes algorithms from outside its repository, with the same proofs, simulation, backends and command as for its own;
//! this crate is one to copy. `docs/own-algorithm.md` explains the steps.
//!
//! ```text
//! 6 ranks     round 0     round 1     round 2
//!            0-1 2-3 4-5  1-2 3-4 5-0  0-1 2-3 4-5
//!             1 block     2 blocks     2 blocks     each way
//! ```
//!
//! Ranks exchange with their two neighbours in turn. A rank passes on the two blocks that it received last, so that after n/2
//! rounds every rank has every block. Cost: n/2 rounds instead of a ring's n-1, the same n-1 blocks per rank. The algorithm
//! takes an even number of ranks; an odd number of ranks uses the ring. Source: J. Chen, L. Zhang, Y. Zhang and W. Yuan,
//! "Performance evaluation of allgather algorithms on terascale Linux cluster with fast Ethernet", HPC Asia 2005.
//!
//! ```
//! use allfold_schedules::registry::Shape;
//! use allfold_schedules::{check, render};
//!
//! let (own, shape) = (&own_algorithm::ALGORITHMS[0], Shape::new(6)?);
//! assert!(check::verify(own, shape).ok());
//! assert_eq!(
//!     render::cost(&own.build(shape)?),
//!     "6 ranks, 6 chunks: 3 rounds, 18 messages; a rank sends 0.833 times the data",
//! );
//! # Ok::<(), allfold_schedules::registry::Error>(())
//! ```

use allfold_schedules::algorithms::RingReduceScatter;
use allfold_schedules::registry::{Algorithm, Shape};
use allfold_schedules::schedule::{Combine, Reverse, Schedule, Span, Step};
use allfold_schedules::{Collective, Rank};
use std::sync::Arc;

/// The algorithms of this crate, as [`Algorithm`]s that the tests, `World::with` and the command take.
pub static ALGORITHMS: [Algorithm; 1] = [Algorithm::new(
    Collective::AllGather,
    "neighbor_exchange",
    "with both neighbours in turn, half of a ring's rounds",
    build,
)];

fn build(shape: Shape) -> Arc<dyn Schedule> {
    match shape.ranks() {
        ranks if ranks.is_multiple_of(2) => Arc::new(NeighborExchange(ranks)),
        // A reduce-scatter whose rounds run backwards is an all-gather.
        odd => Arc::new(Reverse(RingReduceScatter(odd))),
    }
}

/// All-gather by neighbour exchange over this many ranks, an even number.
#[derive(Clone, Copy, Debug)]
pub struct NeighborExchange(pub u32);

impl NeighborExchange {
    /// The first of the two blocks that a rank receives in a round; for round 0, the first of its own block and its peer's.
    fn received(&self, rank: u32, round: u32) -> u32 {
        let (pair, distance) = (rank & !1, 2 * round.div_ceil(2) % self.0);
        // Even ranks get blocks from above in even rounds and from below in odd rounds; odd ranks the other way round.
        match (rank + round).is_multiple_of(2) {
            true => (pair + distance) % self.0,
            false => (pair + self.0 - distance) % self.0,
        }
    }
}

impl Schedule for NeighborExchange {
    fn ranks(&self) -> u32 {
        self.0
    }
    fn chunks(&self) -> u32 {
        self.0
    }
    fn rounds(&self) -> u64 {
        u64::from(self.0 / 2)
    }
    fn step(&self, Rank(rank): Rank, round: u64) -> Step {
        let (n, round) = (self.0, round as u32);
        let up = (rank + round).is_multiple_of(2);
        let peer = Rank(if up { (rank + 1) % n } else { (rank + n - 1) % n });
        let (sent, received) = match round {
            0 => (Span::data(rank, 1), Span::data(peer.0, 1)),
            _ => (Span::data(self.received(rank, round - 1), 2), Span::data(self.received(rank, round), 2)),
        };
        Step { send: Some((peer, sent)), recv: Some((peer, received, Combine::Copy)) }
    }
}
