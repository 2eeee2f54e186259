//! The steps of every rank with one piece of a pipeline, by round, from which programs and timetables are made.

use super::{Error, Representatives};
use allfold_schedules::schedule::{Schedule, Step};

/// The greatest number of steps with one piece, for all ranks (`MOST`) and for one rank (`EACH`); schedules with more are refused.
/// A tree has 8 per rank, and each step is compared with the rank's earlier steps.
const MOST: usize = 1 << 23;
const EACH: usize = 256;
/// The steps of one piece, by round.
pub(super) type Acts = Vec<Vec<(u32, Step)>>;

/// The steps of every representative with one piece, by round.
pub(super) fn acts(of: &dyn Schedule, cast: &impl Representatives) -> Result<Acts, Error> {
    let rounds = usize::try_from(of.rounds()).ok().filter(|rounds| *rounds <= MOST);
    let mut acts =
        vec![Vec::new(); rounds.ok_or_else(|| refusal("it has too many rounds to be remembered"))?];
    let mut count = 0;
    for representative in 0..cast.representatives() {
        let (rank, mut from, before) = (cast.rank(representative), 0, count);
        while let Some(round) = of.next(rank, from) {
            acts[round as usize].push((representative, of.step(rank, round)));
            (from, count) = (round + 1, count + 1);
            if count > MOST || count - before > EACH {
                return Err(refusal("it has too many steps to keep in memory"));
            }
        }
    }
    Ok(acts)
}

pub(super) fn refusal(why: &str) -> Error {
    Error::Job(format!("serial_links: {why}; take a pipeline of few steps a rank, or share links (`split`)"))
}
