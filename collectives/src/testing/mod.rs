//! The checks that every algorithm of the table must pass, to be run on your own algorithm.
//!
//! ```
//! use allfold_collectives::schedule::{Combine, Rank, Schedule, Span, Step};
//! use allfold_collectives::{Collective, registry::Algorithm, testing};
//! use std::sync::Arc;
//!
//! /// Every other rank in turn sends all data to rank 0, which then sends the result to each in turn.
//! struct RoundTrip(u32);
//!
//! impl Schedule for RoundTrip {
//!     fn ranks(&self) -> u32 {
//!         self.0
//!     }
//!     fn chunks(&self) -> u32 {
//!         1
//!     }
//!     fn rounds(&self) -> u64 {
//!         2 * (u64::from(self.0) - 1)
//!     }
//!     fn step(&self, rank: Rank, round: u64) -> Step {
//!         let (others, all, root) = (self.0 - 1, Span::data(0, 1), Rank(0));
//!         let leaf = Rank(1 + round as u32 % others);
//!         let (from, to, how) = match round < u64::from(others) {
//!             true => (leaf, root, Combine::Reduce),
//!             false => (root, leaf, Combine::Copy),
//!         };
//!         Step {
//!             send: (rank == from).then_some((to, all)),
//!             recv: (rank == to).then_some((from, all, how)),
//!         }
//!     }
//! }
//!
//! static MINE: Algorithm = Algorithm::new(Collective::AllReduce, "round_trip", "one after the other", |shape| {
//!     Arc::new(RoundTrip(shape.ranks()))
//! });
//!
//! testing::conforms(&MINE).unwrap();
//! ```
//!
//! [`conforms`] is quick and runs the same cases every time. To run more cases, draw them with the feature `proptest`:
//!
//! ```no_run
//! # use allfold_collectives::{registry::ALGORITHMS, testing};
//! # static MINE: &allfold_collectives::registry::Algorithm = &ALGORITHMS[0];
//! use proptest::prelude::*;
//!
//! proptest! {
//!     #[test]
//!     fn mine_gives_the_exact_result(case in testing::cases(40)) {
//!         testing::runs(MINE, &case).unwrap();
//!     }
//! }
//! ```

mod case;
mod run;

pub use allfold_schedules::testing::{ConformanceFailure, proves};
pub use allfold_timing::testing::times;
pub use case::Case;
#[cfg(feature = "proptest")]
pub use case::cases;
pub use run::runs;
#[doc(hidden)]
pub use run::{Exact, extent};

use crate::registry::Algorithm;
use crate::{DType, Rank, ReduceOp};

/// Proves, times and runs an algorithm for a fixed choice of rank counts, sizes and types. Rank counts that the algorithm does not take
/// are skipped. This takes a second or two.
///
/// # Errors
/// The first check that fails, or an algorithm that takes none of 1 to 64 ranks.
pub fn conforms(algorithm: &'static Algorithm) -> Result<(), ConformanceFailure> {
    if fixed(algorithm).next().is_none() {
        let what = "takes none of 1 to 64 ranks, so that nothing could be checked";
        return Err(ConformanceFailure::new(algorithm, MOST, what));
    }
    for ranks in (1..=17).chain([24, 32, 33]) {
        proves(algorithm, ranks)?;
    }
    for ranks in [1, 2, 3, 8, 12, 16] {
        times(algorithm, ranks)?;
    }
    fixed(algorithm).try_for_each(|case| runs(algorithm, &case))
}

/// The most ranks of a case of [`conforms`].
const MOST: u32 = 64;

/// The cases of [`conforms`], with five rank counts that the algorithm takes, where there are five up to 64.
pub fn fixed(algorithm: &Algorithm) -> impl Iterator<Item = Case> + use<> {
    let kinds = [
        (DType::F32, ReduceOp::Sum),
        (DType::Bf16, ReduceOp::Sum),
        (DType::I32, ReduceOp::Prod),
        (DType::F16, ReduceOp::Min),
        (DType::F64, ReduceOp::Avg),
        (DType::I8, ReduceOp::Max),
    ];
    let forms = [(1, None, 4), (3, Some(16), 0), (64, Some(8), 1)];
    let counts = [1, 2, 3, 4, 7, 5, 6].into_iter().chain(8..=MOST).filter(|ranks| algorithm.takes(*ranks));
    let counts: Vec<u32> = counts.take(5).collect();
    counts.into_iter().flat_map(move |ranks| {
        [0, 1, ranks as usize - 1, 29].into_iter().enumerate().map(move |(nth, count)| {
            let (dtype, op) = kinds[(nth + ranks as usize) % kinds.len()];
            let (window, segment, buffered) = forms[(nth + 2 * ranks as usize) % forms.len()];
            let root = Rank((nth as u32 * 2 + 1) % ranks);
            Case { ranks, root, count, dtype, op, segment, window, buffered }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Collective;
    use crate::algorithms::RingAllReduce;
    use std::sync::Arc;

    const RING: Algorithm =
        Algorithm::new(Collective::AllReduce, "mine", "", |shape| Arc::new(RingAllReduce(shape.ranks())));

    #[test]
    fn an_algorithm_for_some_numbers_of_ranks_conforms_on_these() {
        static SQUARE: Algorithm = RING.only_for("a square number of ranks", |n| n.isqrt().pow(2) == n);
        static EVEN: Algorithm = RING.only_for("an even number of ranks", |n| n % 2 == 0);
        let counts = |of: &Algorithm| {
            let mut counts: Vec<u32> = fixed(of).map(|case| case.ranks).collect();
            counts.dedup();
            counts
        };
        assert_eq!(counts(&RING), [1, 2, 3, 4, 7]);
        assert_eq!(counts(&SQUARE), [1, 4, 9, 16, 25]);
        for algorithm in [&SQUARE, &EVEN] {
            conforms(algorithm).unwrap();
            let case = Case { ranks: 3, ..fixed(&RING).next().unwrap() };
            assert_eq!(
                (proves(algorithm, 3), times(algorithm, 3), runs(algorithm, &case)),
                (Ok(()), Ok(()), Ok(()))
            );
        }
    }

    #[test]
    fn an_algorithm_that_no_check_can_run_does_not_conform() {
        static MANY: Algorithm = RING.only_for("more than 1,000 ranks", |n| n > 1000);
        let error = conforms(&MANY).unwrap_err().to_string();
        assert!(error.contains("takes none of 1 to 64 ranks"), "{error}");
    }
}
