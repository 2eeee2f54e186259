//! Proofs that every message is received and that every rank ends with the result that its collective defines.
//!
//! ```text
//! matching     every send has one recv of the same size in the same round      local: any round can be checked alone
//! symbolic     the reduction tree of every chunk of every rank                 global: runs the schedule on symbols
//! claims       `next` skips no step, every stated symmetry holds               what both proofs rely on
//! ```
//!
//! Both proofs are needed: in a schedule that reduces where it should copy, all messages match; and a schedule with sends that no
//! rank receives may still leave the right result.

mod claims;
mod cost;
mod counterexample;
mod first_use;
mod matching;
mod symbolic;
mod tree;
mod walk;

pub use claims::claims;
pub use cost::Cost;
pub use counterexample::Counterexample;
pub use first_use::{MOST_PROVED, on_first_use};
pub use matching::{matching, matching_round};
pub use symbolic::{Order, Proof, symbolic};
pub use tree::{Forest, Tree, TreeHash};
pub use walk::walk;

use crate::Collective;
use crate::registry::{self, Algorithm, Shape};
use crate::schedule::{Lanes, Rank, Schedule, Segments};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Checks a schedule's claims, then both proofs, which rely on the claims.
///
/// # Errors
/// The first counterexample.
pub fn check(
    schedule: &(impl Schedule + ?Sized),
    collective: Collective,
    root: Rank,
) -> Result<Proof, Counterexample> {
    claims(schedule)?;
    prove(schedule, collective, root)
}

fn prove(
    schedule: &(impl Schedule + ?Sized),
    collective: Collective,
    root: Rank,
) -> Result<Proof, Counterexample> {
    matching(schedule, collective)?;
    symbolic(schedule, collective, root)
}

/// The result of all checks of an algorithm for one rank count.
#[derive(Clone, Debug)]
pub struct Verification {
    /// The collective that was proved.
    pub collective: Collective,
    /// The algorithm's name in the registry.
    pub algorithm: &'static str,
    /// The number of ranks.
    pub ranks: u32,
    /// The number of rounds of the schedule.
    pub rounds: u64,
    /// The order of the algorithm's reductions; `None` if it reduces nothing or a check failed.
    pub order: Option<Order>,
    /// The hash of the algorithm's reduction tree; `None` if it reduces nothing or a check failed.
    pub tree: Option<TreeHash>,
    /// The first counterexample and the form (plain, in segments, in lanes) that has it; `None` if all checks passed.
    pub failure: Option<(String, Counterexample)>,
}

impl Verification {
    /// Whether every check passed.
    pub fn ok(&self) -> bool {
        self.failure.is_none()
    }
}

/// Checks an algorithm for the shape's root; for collectives with a root also for the first, the middle and the last rank as root;
/// for the shape's root also cut into three segments and in two lanes.
pub fn verify(algorithm: &Algorithm, shape: Shape) -> Verification {
    let Algorithm { collective, name, .. } = *algorithm;
    let (rounds, proof) = match algorithm.build(shape) {
        Ok(plain) => (plain.rounds(), every_form(algorithm, shape, &plain)),
        Err(error) => (0, Err(("plain".into(), unbuilt(&error)))),
    };
    let (order, tree) = proof.as_ref().map_or((None, None), |proof| (proof.order(), proof.hash()));
    let (ranks, failure) = (shape.ranks(), proof.err());
    Verification { collective, algorithm: name, ranks, rounds, order, tree, failure }
}

fn unbuilt(error: &registry::Error) -> Counterexample {
    Counterexample { rank: Rank(0), round: None, chunk: None, what: error.to_string() }
}

fn every_form(
    algorithm: &Algorithm,
    shape: Shape,
    plain: &Arc<dyn Schedule>,
) -> Result<Proof, (String, Counterexample)> {
    let (collective, root) = (algorithm.collective, shape.root());
    let form = |form: &'static str, root| move |flaw| (format!("{form}, root {root}"), flaw);
    let proof = check(plain, collective, root).map_err(form("plain", root))?;
    prove(&Segments::new(plain, 3), collective, root).map_err(form("in 3 segments", root))?;
    prove(&Lanes::split(plain, 2), collective, root).map_err(form("in 2 lanes", root))?;
    let last = shape.ranks() - 1;
    let others: BTreeSet<Rank> = [0, last / 2, last].map(Rank).into();
    for root in others.into_iter().filter(|other| collective.rooted() && *other != root) {
        if let Ok(shape) = shape.rooted(root) {
            let built = algorithm.build(shape).map_err(|error| unbuilt(&error));
            built.and_then(|plain| check(&plain, collective, root)).map_err(form("plain", root))?;
        }
    }
    Ok(proof)
}
