//! What every rank does with one piece, round by round: the steps that programs and timetables are made of.

use super::{Error, Representatives};
use allfold_schedules::schedule::{Schedule, Step};

/// Steps of all ranks, and of one rank, with one piece: more are refused. A tree has 8 a rank, and each step is held against
/// the rank's earlier ones.
const MOST: usize = 1 << 23;
const EACH: usize = 256;
/// The steps of one piece by round.
pub(super) type Acts = Vec<Vec<(u32, Step)>>;

/// What every representative does with a piece, by round.
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
                return Err(refusal("it has too many steps to be remembered"));
            }
        }
    }
    Ok(acts)
}

pub(super) fn refusal(why: &str) -> Error {
    Error::Job(format!("serial_links: {why}; take a pipeline of few steps a rank, or share links (`split`)"))
}
