//! The table of every algorithm of every collective, which tests, benchmarks and the command line all read. A program adds its own
//! algorithms by [`add`].

mod algorithm;
mod error;
mod shape;
mod table;

pub use algorithm::Algorithm;
pub use error::Error;
pub use shape::Shape;
pub use table::ALGORITHMS;

use crate::Collective;
use std::sync::{PoisonError, RwLock};

/// The algorithms that the program passed to [`add`].
static ADDED: RwLock<Vec<&'static Algorithm>> = RwLock::new(Vec::new());

/// Adds a program's own algorithms, so that every later look-up by name finds them in addition to those of the table. All ranks of a job
/// must add the same algorithms.
///
/// # Errors
/// A name that another algorithm of the same collective has. Then no algorithm is added.
pub fn add(own: &'static [Algorithm]) -> Result<(), Error> {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    for (nth, row) in own.iter().enumerate() {
        let mut others = ALGORITHMS.iter().chain(added.iter().copied()).chain(&own[..nth]);
        if others.any(|other| (other.collective, other.name) == (row.collective, row.name)) {
            return Err(Error::Taken { collective: row.collective, name: row.name });
        }
    }
    added.extend(own);
    Ok(())
}

/// Every algorithm: first the algorithms of the table, then those that the program added.
pub fn all() -> impl Iterator<Item = &'static Algorithm> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner).clone();
    ALGORITHMS.iter().chain(added)
}

/// The algorithms of one collective, in the order of [`all`].
pub fn of(collective: Collective) -> impl Iterator<Item = &'static Algorithm> {
    all().filter(move |row| row.collective == collective)
}

/// The algorithm of this name.
///
/// # Errors
/// No algorithm has this name; the error lists the names and suggests the nearest.
pub fn find(collective: Collective, name: &str) -> Result<&'static Algorithm, Error> {
    of(collective).find(|row| row.name == name).ok_or_else(|| {
        let known = of(collective).map(|row| row.name).collect();
        Error::Algorithm { collective, name: name.into(), known }
    })
}

/// The collective of this name.
///
/// # Errors
/// No collective has this name; the error lists the names and suggests the nearest.
pub fn collective(name: &str) -> Result<Collective, Error> {
    let found = Collective::ALL.into_iter().find(|known| known.name() == name);
    found.ok_or_else(|| Error::Collective { name: name.into() })
}

/// The default algorithm for a buffer of `bytes`. The choice depends on the size, but the result does not: all default algorithms
/// of a collective that reduces use the canonical order.
pub fn auto(collective: Collective, shape: Shape, bytes: u64) -> &'static Algorithm {
    let (ranks, small) = (shape.ranks(), bytes <= 32 << 10);
    let (binary, few) = (ranks.is_power_of_two(), ranks <= 64);
    // Where one of two algorithms has the fewest bytes and the other the fewest messages one after another: of simulated switches and
    // nodes of 8 with 3 to 64 ranks, the sizes from which the former is faster.
    let (direct, parts) =
        (ranks <= 8 && bytes >= u64::from(ranks).saturating_sub(2) << 17, few && bytes >= 2 << 20);
    let ring = few && bytes >= u64::from(ranks) << 20;
    #[allow(clippy::expect_used, reason = "a test requests one of every collective")]
    let first = of(collective).next().expect("every collective has an algorithm");
    let name = match collective {
        Collective::AllReduce if small => "recursive_doubling",
        Collective::AllReduce | Collective::ReduceScatter if binary || !direct => "halving_doubling",
        Collective::AllReduce | Collective::ReduceScatter => "direct",
        Collective::Reduce if !parts => "binomial",
        Collective::Reduce => "direct",
        Collective::Broadcast if parts => "scatter_all_gather",
        Collective::Broadcast if small || few => "binomial",
        Collective::Broadcast => "double_binary_tree",
        Collective::AllGather if binary => "halving_doubling",
        Collective::AllGather if ring => "ring",
        Collective::AllGather => "bruck",
        Collective::Gather | Collective::Scatter if small => "binomial",
        Collective::Gather | Collective::Scatter => "star",
        Collective::AllToAll if small => "bruck",
        Collective::AllToAll => "pairwise",
        // The collective has one algorithm, or the first of the table is the right one.
        _ => return first,
    };
    #[allow(clippy::expect_used, reason = "a test requests every one of these names")]
    find(collective, name).expect("a default algorithm is in the table")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Rank;

    #[test]
    fn automatic_choice_is_in_the_table_for_every_size() {
        for ranks in [1, 2, 3, 8, 63, 64, 65, 100_000, 131_072] {
            let shape = Shape::new(ranks).unwrap();
            for collective in Collective::ALL {
                for bytes in [0, 1 << 10, 1 << 20, 1 << 40] {
                    assert_eq!(auto(collective, shape, bytes).collective, collective);
                }
            }
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let error = find(Collective::AllReduce, "rong").err().unwrap().to_string();
        assert!(error.contains("did you mean `ring`?") && error.contains("double_binary_tree"), "{error}");
        let error = collective("allreduce").err().unwrap().to_string();
        assert!(error.contains("did you mean `all_reduce`?"), "{error}");
        assert_eq!(find(Collective::Barrier, "zzzzzzzzz").err().unwrap().to_string().matches('?').count(), 0);
    }

    #[test]
    fn a_name_that_is_taken_is_not_added() {
        static TAKEN: [Algorithm; 1] =
            [Algorithm::new(Collective::AllReduce, "ring", "", |_| unreachable!())];
        let error = add(&TAKEN).unwrap_err().to_string();
        assert_eq!(error, "all_reduce has an algorithm `ring` already; give your own another name");
        assert_eq!(all().count(), ALGORITHMS.len());
    }

    #[test]
    fn a_schedule_is_for_the_ranks_of_its_shape() {
        use crate::algorithms::RingAllReduce;
        use crate::check;
        use std::sync::Arc;
        let even =
            |shape: Shape| Arc::new(RingAllReduce(shape.ranks() & !1)) as Arc<dyn crate::schedule::Schedule>;
        let mine = Algorithm::new(Collective::AllReduce, "mine", "", even);
        let shape = |ranks| Shape::new(ranks).unwrap();
        let error = mine.build(shape(5)).err().unwrap().to_string();
        let made = "all_reduce by mine made a schedule for a group of 4, not of 5: it must be for all ranks of the shape that it is given";
        assert_eq!(error, made);
        assert!(mine.build(shape(4)).is_ok() && check::verify(&mine, shape(4)).ok());
        assert_eq!(check::verify(&mine, shape(5)).failure.unwrap().1.to_string(), format!("rank 0: {made}"));
        let mine = mine.only_for("an even number of ranks", |ranks| ranks % 2 == 0);
        let error = mine.build(shape(7)).err().unwrap().to_string();
        assert_eq!(error, "all_reduce by mine is for an even number of ranks, and there are 7");
    }

    #[test]
    fn shapes_that_make_no_sense_are_refused() {
        assert_eq!(Shape::new(0), Err(Error::NoRanks));
        let shape = Shape::new(6).unwrap();
        assert_eq!(shape.group(), 6);
        assert!(shape.rooted(Rank(6)).is_err() && shape.grouped(4).is_err() && shape.grouped(0).is_err());
        assert_eq!(Shape::new(24).unwrap().group(), 8);
        assert_eq!(Shape::new(u32::MAX).map(|shape| shape.group()), Ok(5));
    }
}
