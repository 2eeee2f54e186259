//! The proofs of the algorithm table's tests, for the user's own algorithms.
//!
//! ```
//! use allfold_schedules::algorithms::RingAllReduce;
//! use allfold_schedules::{Collective, registry::Algorithm, testing};
//! use std::sync::Arc;
//!
//! static MINE: Algorithm = Algorithm::new(Collective::AllReduce, "mine", "a ring", |shape| {
//!     Arc::new(RingAllReduce(shape.ranks()))
//! });
//!
//! (1..=17).try_for_each(|ranks| testing::proves(&MINE, ranks)).unwrap();
//! ```

use crate::check;
use crate::registry::{Algorithm, Shape};
use std::fmt;

/// The failure of an algorithm in a conformance test. `Debug` prints the same line as `Display`, since a test that ends with this error
/// prints it by `Debug`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{algorithm}, {ranks} ranks: {what}")]
pub struct ConformanceFailure {
    /// The algorithm's collective and name.
    pub algorithm: String,
    /// The number of ranks.
    pub ranks: u32,
    /// What was expected and what was found.
    pub what: String,
}

impl fmt::Debug for ConformanceFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ConformanceFailure {
    /// The failure of an algorithm for `ranks` ranks.
    pub fn new(algorithm: &Algorithm, ranks: u32, what: impl ToString) -> ConformanceFailure {
        ConformanceFailure { algorithm: format!("{algorithm:?}"), ranks, what: what.to_string() }
    }
}

/// Runs both proofs and the check of claims on an algorithm: plain for several roots, in segments and in lanes for root 0. A number of
/// ranks that the algorithm does not take is skipped.
///
/// # Errors
/// The first counterexample.
pub fn proves(algorithm: &Algorithm, ranks: u32) -> Result<(), ConformanceFailure> {
    if !algorithm.takes(ranks) {
        return Ok(());
    }
    let fail = |what: String| Err(ConformanceFailure::new(algorithm, ranks, what));
    let shape = Shape::new(ranks).map_err(|error| ConformanceFailure::new(algorithm, ranks, error))?;
    match check::verify(algorithm, shape).failure {
        Some((form, flaw)) => fail(format!("{form}: {flaw}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Collective;
    use crate::algorithms::{RingAllReduce, halving};
    use std::sync::Arc;

    #[test]
    fn failures_name_the_mistake() {
        static NOT_THIS: Algorithm =
            Algorithm::new(Collective::AllGather, "not_this", "", |shape| Arc::new(halving(shape.ranks())));
        let error = (1..=17).find_map(|ranks| proves(&NOT_THIS, ranks).err()).unwrap().to_string();
        assert!(error.contains("reduces a chunk that holds no data"), "{error}");

        static SMALL: Algorithm =
            Algorithm::new(Collective::AllReduce, "small", "", |_| Arc::new(RingAllReduce(1)));
        assert_eq!(proves(&SMALL, 1), Ok(()));
        let error = proves(&SMALL, 2).unwrap_err().to_string();
        assert!(error.contains("all_reduce by small made a schedule for a group of 1, not of 2"), "{error}");
    }
}
