//! Proofs: every message is expected, and every rank ends with what its collective promises.
//!
//! ```text
//! matching     every send has one recv of the same size in the same round      local: any round can be looked at alone
//! symbolic     the reduction tree of every chunk of every rank                 global: runs the schedule on symbols
//! claims       `next` skips no step, every symmetry is one                     what both proofs rely on
//! ```
//!
//! Neither is enough by itself: a schedule that reduces where it should copy is perfectly matched, and one that sends
//! to nobody may still leave the right result behind.

mod claims;
mod cost;
mod matching;
mod symbolic;
mod tree;
mod walk;

pub use claims::claims;
pub use cost::Cost;
pub use matching::{matching, matching_round};
pub use symbolic::{Order, Proof, symbolic};
pub use tree::{Forest, Tree, TreeHash};
pub use walk::walk;

use crate::Collective;
use crate::registry::{Algorithm, Shape};
use crate::schedule::{Lanes, Rank, Schedule, Segments};
use std::fmt;

/// Where a schedule goes wrong, and how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Counterexample {
    /// The rank that does it or ends with it.
    pub rank: Rank,
    /// The round, where one is to blame.
    pub round: Option<u64>,
    /// The chunk of the data, where one is to blame.
    pub chunk: Option<u32>,
    /// What was expected and what was found.
    pub what: String,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        self.round.map_or(Ok(()), |round| write!(f, ", round {round}"))?;
        self.chunk.map_or(Ok(()), |chunk| write!(f, ", chunk {chunk}"))?;
        write!(f, ": {}", self.what)
    }
}

/// Both proofs of one schedule, and what it says of itself, which they rely on.
///
/// # Errors
/// The first thing found wrong.
pub fn check(
    schedule: &(impl Schedule + ?Sized),
    collective: Collective,
    root: Rank,
) -> Result<Proof, Counterexample> {
    claims(schedule)?;
    matching(schedule, collective)?;
    symbolic(schedule, collective, root)
}

/// What is known of an algorithm for one rank count after it was checked.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// What it computes.
    pub collective: Collective,
    /// Its name in the registry.
    pub algorithm: &'static str,
    /// For how many ranks.
    pub ranks: u32,
    /// How many rounds it takes.
    pub rounds: u64,
    /// In which order it reduces; none where nothing is reduced.
    pub order: Option<Order>,
    /// The identity of its result; none where nothing is reduced.
    pub tree: Option<TreeHash>,
    /// What is wrong with it, and in which form of it.
    pub failure: Option<(String, Counterexample)>,
}

impl Verdict {
    /// Whether every check passed.
    pub fn ok(&self) -> bool {
        self.failure.is_none()
    }
}

/// Checks an algorithm: as it is, cut into three segments, and in two lanes; for the shape's root, and for a rooted
/// collective the first, the middle and the last rank as well.
pub fn verify(algorithm: &Algorithm, shape: Shape) -> Verdict {
    let Algorithm { collective, name, .. } = *algorithm;
    let plain = algorithm.build(shape);
    let mut verdict = Verdict {
        collective,
        algorithm: name,
        ranks: shape.ranks(),
        rounds: plain.rounds(),
        order: None,
        tree: None,
        failure: None,
    };
    let last = shape.ranks() - 1;
    let mut roots = vec![shape.root()];
    if collective.rooted() {
        roots.extend([0, last / 2, last].map(Rank));
        roots[1..].sort_unstable();
        roots.dedup();
    }
    for (nth, root) in roots.into_iter().enumerate() {
        let schedule = shape.rooted(root).map_or_else(|_| plain.clone(), |shape| algorithm.build(shape));
        let fails = |form: &str, flaw| Some((format!("{form}, root {root}"), flaw));
        match check(&schedule, collective, root) {
            Ok(proof) if nth == 0 => (verdict.order, verdict.tree) = (proof.order(), proof.hash()),
            Ok(_) => {}
            Err(flaw) => verdict.failure = fails("plain", flaw),
        }
        if verdict.ok() {
            let cut = Segments::new(&schedule, 3);
            verdict.failure =
                check(&cut, collective, root).err().and_then(|flaw| fails("in 3 segments", flaw));
        }
        if verdict.ok() {
            let laned = Lanes::split(&schedule, 2);
            verdict.failure =
                check(&laned, collective, root).err().and_then(|flaw| fails("in 2 lanes", flaw));
        }
        if !verdict.ok() {
            break;
        }
    }
    verdict
}
