//! Simulates one representative per symmetry class of schedule and topology; the times equal those of stepping all ranks.
//!
//! ```text
//! ring of 131,072 on nodes of 8      the schedule allows any rotation, the nodes rotations by 8: 8 representatives
//! halving-doubling on nodes of 8     xor with any mask keeps both: 1 representative
//! ```
//!
//! Ranks that a renumbering maps to each other act in the same way at the same time, so stepping one of them is exact, to the picosecond,
//! and costs as little as stepping that number of ranks. Symmetry classes need chunks of equal size (a remainder makes one rank's message
//! longer), no fault rule, and a renumbering that both the schedule and the topology have. They also need a window of one step, unless
//! the renumbering also renumbers chunks: symmetric ranks send equal messages in the same round, but the position in scratch where a rank
//! stores what it receives may differ, and so may the steps that wait for each other (a direct reduce-scatter folds in the order of
//! ranks, not of distance).

use super::classes::{Basis, Classes};
use super::representatives::replicated;
use super::symmetry_classes::SymmetryClasses;
use super::{Error, Job, Method, Outcome, clocks, events};
use allfold_schedules::schedule::Permutation;
use allfold_sim::Topology;

/// Times a job by symmetry classes. With `round_up`, chunks of unequal size are made equal first.
pub(crate) fn run(job: &Job<'_>, round_up: bool) -> Result<Outcome, Error> {
    let symmetry_classes = symmetry_classes(job)?;
    if job.geometry.is_equal() {
        return timed(job, &symmetry_classes);
    }
    let count = job.geometry.count();
    if !round_up {
        let chunks = job.geometry.chunks();
        return Err(refusal(
            &format!("{count} elements make {chunks} chunks of unequal size"),
            "give a count that divides evenly, have chunks rounded up, or step every rank (`full`)",
        ));
    }
    let geometry = job.geometry.rounded_up(job.schedule);
    if !geometry.is_equal() {
        return Err(refusal("ranks have unequal numbers of chunks", "step every rank (`full`)"));
    }
    let job = Job { geometry: &geometry, ..*job };
    job.check()?;
    Ok(Outcome { rounded: Some(geometry.count()), ..timed(&job, &symmetry_classes)? })
}

/// The topology as one rank per class sees it; an error if faults or the window make ranks of one class differ.
fn symmetry_classes<'a>(job: &Job<'a>) -> Result<SymmetryClasses<'a>, Error> {
    if !job.faults.is_empty() {
        return Err(refusal("a fault rule makes ranks or links unequal", "step every rank (`full`)"));
    }
    if job.window > 1 && !job.schedule.renumbers_chunks() {
        return Err(refusal(
            "in a window of several steps ranks of one class may wait for different ones",
            "use a window of 1, or step every rank (`full`)",
        ));
    }
    Ok(SymmetryClasses::new(job.topology, common(job)?))
}

/// Times one of several equal lanes (`one`) and returns the outcome of the job with all of them (`whole`).
pub(crate) fn folded(one: &Job<'_>, whole: &Job<'_>, lanes: u32) -> Result<Outcome, Error> {
    let symmetry_classes = symmetry_classes(one)?;
    let cast = replicated(&symmetry_classes, lanes);
    let run = events::run(one, &cast, None)?.times(lanes);
    Ok(Outcome { folded: lanes, ..run.outcome(whole, &cast, Method::EventsBySymmetry)? })
}

fn timed(job: &Job<'_>, symmetry_classes: &SymmetryClasses<'_>) -> Result<Outcome, Error> {
    match clocks::run(job, symmetry_classes)? {
        Some(run) => run.outcome(job, symmetry_classes, Method::ClocksBySymmetry),
        None => {
            events::run(job, symmetry_classes, None)?.outcome(job, symmetry_classes, Method::EventsBySymmetry)
        }
    }
}

fn refusal(why: &str, instead: &str) -> Error {
    Error::NoSymmetry { why: why.into(), instead: instead.into() }
}

/// The symmetry classes of the renumberings that schedule and topology have in common: rotations or masks, whichever leave fewer
/// representatives.
fn common(job: &Job<'_>) -> Result<Classes, Error> {
    let ranks = job.topology.ranks();
    let symmetry = job.schedule.symmetry();
    if symmetry.is_empty() {
        return Err(refusal(
            "no renumbering of the ranks maps the schedule to itself",
            "step every rank (`full`)",
        ));
    }
    let classes = [rotations(&symmetry, job.topology), masks(&symmetry, job.topology)];
    let fewest = classes.into_iter().flatten().min_by_key(Classes::count);
    match fewest {
        Some(classes) if classes.count() < ranks || ranks == 1 => Ok(classes),
        _ => Err(refusal(
            &format!(
                "schedule and topology `{}` have no renumbering of the {ranks} ranks in common",
                job.topology.name()
            ),
            "take a number of ranks that fills every node (and a power of two for xor), or step every rank (`full`)",
        )),
    }
}

/// The classes of the rotations by common multiples of the schedule's and the topology's rotations.
fn rotations(symmetry: &[Permutation], topology: &Topology) -> Option<Classes> {
    let ranks = topology.ranks();
    let schedule = symmetry.iter().filter_map(|permutation| match permutation {
        Permutation::Rotate(by) => Some(*by),
        Permutation::Xor(_) => None,
    });
    let schedule = schedule.reduce(gcd).map(|by| gcd(by, ranks))?;
    let wired = topology.symmetry().rotations?;
    let step = schedule / gcd(schedule, wired) * wired;
    Some(Classes::Rotations { ranks, step })
}

/// The classes of the schedule's xor masks that the topology also has.
fn masks(symmetry: &[Permutation], topology: &Topology) -> Option<Classes> {
    let ranks = topology.ranks();
    let unit = topology.symmetry().masks?;
    let masks = symmetry.iter().filter_map(|permutation| match permutation {
        Permutation::Xor(mask) => Some(*mask).filter(|mask| mask % unit == 0),
        Permutation::Rotate(_) => None,
    });
    let basis = Basis::spanned_by(masks);
    // Every mask must map the ranks to the ranks.
    let whole = basis.masks().all(|mask| ranks.is_multiple_of(1 << (mask.ilog2() + 1)));
    whole.then_some(Classes::Masks { ranks, basis })
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
