//! The proof of a program's own algorithm before a communicator first runs it: ranks of a wrong schedule would wait for each other
//! until the deadline, or end with a wrong result.

use super::{Counterexample, check};
use crate::registry::{ALGORITHMS, Algorithm, Error, Shape};
use crate::schedule::{Rank, Schedule};
use allfold_base::panic_message;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

/// The largest schedule that is proved, in steps and moved chunks of all ranks: a proof of so many takes about a tenth of a second. A ring
/// of up to 256 ranks has fewer.
pub const MOST_PROVED: u64 = 1 << 18;
/// The most ranks of the proof in place of one of a larger schedule.
const FEW: u32 = 16;

/// What is wrong with an algorithm, and over how many ranks, for each algorithm, number of ranks and root that this process has proved.
type Proved = BTreeMap<(usize, u32, Rank), Option<(u32, String)>>;

static PROVED: Mutex<Proved> = Mutex::new(BTreeMap::new());

/// Refuses a schedule that an algorithm made for this shape and that is wrong. The algorithms of the table are proved by tests and are
/// not proved here. In place of a schedule of more than [`MOST_PROVED`] steps the algorithm's schedule of 16 ranks is proved, or of the most
/// below that it takes. A process proves each algorithm once per shape.
///
/// # Errors
/// [`Error::Wrong`] with the counterexample.
pub fn on_first_use(
    algorithm: &'static Algorithm,
    shape: Shape,
    schedule: &dyn Schedule,
) -> Result<(), Error> {
    if ALGORITHMS.iter().any(|row| std::ptr::eq(row, algorithm)) {
        return Ok(());
    }
    let key = (std::ptr::from_ref(algorithm).addr(), shape.ranks(), shape.root());
    // The lock is held during the proof, so that ranks that are threads of one process wait for one proof.
    let mut proved = PROVED.lock().unwrap_or_else(PoisonError::into_inner);
    let flaw = proved.entry(key).or_insert_with(|| flaw(algorithm, shape, schedule));
    let Algorithm { collective, name, .. } = *algorithm;
    match flaw.clone() {
        None => Ok(()),
        Some((ranks, flaw)) => Err(Error::Wrong { collective, name, ranks, flaw }),
    }
}

fn flaw(algorithm: &Algorithm, shape: Shape, schedule: &dyn Schedule) -> Option<(u32, String)> {
    let mut ranks = shape.ranks();
    let proof = || {
        if is_small(schedule) {
            return check(schedule, algorithm.collective, shape.root()).err();
        }
        ranks = (1..=FEW).rev().find(|ranks| algorithm.takes(*ranks))?;
        let few = algorithm.build(Shape::new(ranks).ok()?).ok().filter(|few| is_small(&**few))?;
        check(&*few, algorithm.collective, Rank(0)).err()
    };
    let flaw: Result<Option<Counterexample>, _> = catch_unwind(AssertUnwindSafe(proof));
    let told = |panic: Box<dyn std::any::Any + Send>| format!("it panicked: {}", panic_message(&*panic));
    let flaw = flaw.map_or_else(|panic| Some(told(panic)), |flaw| flaw.map(|flaw| flaw.to_string()));
    flaw.map(|flaw| (ranks, flaw))
}

/// Whether a schedule has at most [`MOST_PROVED`] steps and moved chunks.
fn is_small(schedule: &dyn Schedule) -> bool {
    let (ranks, rounds) = (schedule.ranks(), schedule.rounds());
    let places = u64::from(schedule.chunks()).saturating_mul(u64::from(schedule.segments())).max(rounds);
    if places.saturating_mul(u64::from(ranks)) > MOST_PROVED {
        return false;
    }
    let mut left = MOST_PROVED;
    (0..ranks).all(|rank| {
        (0..rounds).all(|round| {
            let moved =
                schedule.step(Rank(rank), round).recv.map_or(0, |(_, span, _)| u64::from(span.chunks));
            left = left.saturating_sub(1 + moved);
            left > 0
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Collective;
    use crate::algorithms::{RingAllReduce, halving};
    use crate::schedule::Step;
    use std::sync::Arc;

    fn proved(algorithm: &'static Algorithm, ranks: u32) -> Result<(), String> {
        let shape = Shape::new(ranks).unwrap();
        on_first_use(algorithm, shape, &*algorithm.build(shape).unwrap()).map_err(|error| error.to_string())
    }

    /// The first half of a schedule's rounds.
    struct Half(RingAllReduce);

    impl Schedule for Half {
        fn ranks(&self) -> u32 {
            self.0.ranks()
        }
        fn chunks(&self) -> u32 {
            self.0.chunks()
        }
        fn rounds(&self) -> u64 {
            self.0.rounds() / 2
        }
        fn step(&self, rank: Rank, round: u64) -> Step {
            self.0.step(rank, round)
        }
    }

    /// A schedule of so many ranks and rounds that a proof would take years, in which no rank does anything.
    struct Endless(u32);

    impl Schedule for Endless {
        fn ranks(&self) -> u32 {
            self.0
        }
        fn chunks(&self) -> u32 {
            u32::MAX
        }
        fn rounds(&self) -> u64 {
            u64::MAX
        }
        fn step(&self, _: Rank, _: u64) -> Step {
            panic!("a step of an endless schedule is taken")
        }
    }

    #[test]
    fn a_wrong_algorithm_is_refused_with_its_counterexample_and_a_right_one_is_not() {
        static RIGHT: Algorithm = Algorithm::new(Collective::AllReduce, "right", "", |shape| {
            Arc::new(RingAllReduce(shape.ranks()))
        });
        // It reduces and scatters, and does not gather.
        static WRONG: Algorithm =
            Algorithm::new(Collective::AllReduce, "wrong", "", |shape| Arc::new(halving(shape.ranks())));
        for ranks in [1, 2, 8, 256] {
            assert_eq!(proved(&RIGHT, ranks), Ok(()));
        }
        for _ in 0..2 {
            let error = proved(&WRONG, 8).unwrap_err();
            assert!(
                error.starts_with("all_reduce by wrong is wrong over 8 ranks: rank 0, chunk "),
                "{error}"
            );
        }
    }

    #[test]
    fn an_algorithm_whose_schedule_is_too_large_for_a_proof_is_proved_over_fewer_ranks() {
        static RIGHT: Algorithm = Algorithm::new(Collective::AllReduce, "right", "", |shape| {
            Arc::new(RingAllReduce(shape.ranks()))
        });
        // It reduces and scatters, and does not gather.
        static WRONG: Algorithm = Algorithm::new(Collective::AllReduce, "half", "", |shape| {
            Arc::new(Half(RingAllReduce(shape.ranks())))
        });
        static OF_MANY: Algorithm = Algorithm::new(Collective::AllReduce, "half", "", |shape| {
            Arc::new(Half(RingAllReduce(shape.ranks())))
        })
        .only_for("more than 100 ranks", |ranks| ranks > 100);
        assert_eq!(proved(&RIGHT, 600), Ok(()));
        let error = proved(&WRONG, 600).unwrap_err();
        assert!(error.starts_with("all_reduce by half is wrong over 16 ranks: rank 0, chunk "), "{error}");
        assert_eq!(proved(&OF_MANY, 600), Ok(()));
    }

    #[test]
    fn a_schedule_that_is_too_large_for_every_proof_is_not_proved_and_one_that_panics_is_refused() {
        static LARGE: Algorithm =
            Algorithm::new(Collective::AllReduce, "large", "", |shape| Arc::new(Endless(shape.ranks())));
        assert_eq!(proved(&LARGE, 4), Ok(()));

        struct Panics;
        impl Schedule for Panics {
            fn ranks(&self) -> u32 {
                2
            }
            fn chunks(&self) -> u32 {
                1
            }
            fn rounds(&self) -> u64 {
                1
            }
            fn step(&self, _: Rank, _: u64) -> Step {
                panic!("no step")
            }
        }
        static PANICS: Algorithm = Algorithm::new(Collective::AllReduce, "panics", "", |_| Arc::new(Panics));
        let error = proved(&PANICS, 2).unwrap_err();
        assert_eq!(error, "all_reduce by panics is wrong over 2 ranks: it panicked: no step");
    }
}
