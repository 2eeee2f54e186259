//! Proofs of an algorithm on the command line, which may be a program's own: it may panic, and it may be wrong.

use allfold_base::panic_message;
use allfold_collectives::Rank;
use allfold_collectives::check::{self, Counterexample, Verification};
use allfold_collectives::registry::{Algorithm, Shape};
use allfold_report::format::counted;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The most ranks for which an algorithm is proved before it is timed; `allfold verify` proves it for more.
const MOST_PROVED: u32 = 64;
/// The most ranks of the proof instead of one for more than [`MOST_PROVED`] ranks.
const FEW: u32 = 16;

/// Checks an algorithm as [`check::verify`] does. An algorithm that panics has failed.
pub fn verify(algorithm: &Algorithm, shape: Shape) -> Verification {
    catch_unwind(AssertUnwindSafe(|| check::verify(algorithm, shape))).unwrap_or_else(|panic| {
        let what = format!("it panicked: {}", panic_message(&*panic));
        let flaw = Counterexample { rank: Rank(0), round: None, chunk: None, what };
        Verification {
            collective: algorithm.collective,
            algorithm: algorithm.name,
            ranks: shape.ranks(),
            rounds: 0,
            order: None,
            tree: None,
            failure: Some(("plain".into(), flaw)),
        }
    })
}

/// Warns of an algorithm, such as one that a program added, if its result is wrong: its time then means nothing.
pub fn warn_if_wrong(algorithm: &Algorithm, ranks: u32) {
    if let Some(what) = wrong(algorithm, ranks) {
        tracing::warn!("{what}");
    }
}

/// What is wrong with an algorithm; `None` if its proofs hold.
fn wrong(algorithm: &Algorithm, ranks: u32) -> Option<String> {
    let ranks = match ranks {
        proved if proved <= MOST_PROVED => proved,
        _ => (1..=FEW).rev().find(|ranks| algorithm.takes(*ranks))?,
    };
    let (form, flaw) = verify(algorithm, Shape::new(ranks).ok()?).failure?;
    let (name, over) = (algorithm.name, counted(ranks as usize, "rank"));
    Some(format!("{name} is wrong over {over}, so that its time means nothing: {form}: {flaw}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_collectives::Collective;
    use allfold_collectives::registry;

    #[test]
    fn an_algorithm_with_a_wrong_result_is_named() {
        let ring = registry::find(Collective::AllGather, "ring").unwrap();
        assert_eq!(wrong(ring, 8), None);
        // It gathers, and does not reduce.
        let gathers = |shape| registry::find(Collective::AllGather, "ring").unwrap().build(shape).unwrap();
        let own = Algorithm::new(Collective::AllReduce, "mine", "wrong", gathers);
        for (ranks, over) in [(1000, 16), (64, 64), (35, 35)] {
            let what = wrong(&own, ranks).unwrap();
            let start = format!("mine is wrong over {over} ranks, so that its time means nothing: ");
            assert!(what.starts_with(&start), "{what}");
        }
    }

    #[test]
    fn an_algorithm_that_panics_has_failed() {
        let own =
            Algorithm::new(Collective::AllReduce, "mine", "panics", |shape| panic!("no {}", shape.ranks()));
        let Verification { failure, ranks, .. } = verify(&own, Shape::new(5).unwrap());
        assert_eq!((failure.unwrap().1.to_string(), ranks), ("rank 0: it panicked: no 5".into(), 5));
        // A proof over few ranks is for a number of ranks that the algorithm takes, if there is one.
        assert!(wrong(&own.only_for("more than 1,000 ranks", |ranks| ranks > 1000), 2000).is_none());
    }
}
