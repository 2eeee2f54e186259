//! Checks a schedule's claims beyond its steps: the next round in which a rank acts, pipelines, and symmetries.
//!
//! The interpreters rely on these claims: a `next` that omits a step would hide the step from every proof, and a wrong symmetry
//! would let one rank represent another rank that behaves differently.

use super::Counterexample;
use crate::schedule::{MirroredLanes, Permutation, Pipeline, Rank, Schedule, Span, Step};
use std::collections::BTreeMap;
use std::iter::successors;

/// Compares [`Schedule::next`], [`Schedule::active`], [`Schedule::pipeline`], [`Schedule::symmetry`],
/// [`Schedule::renumbers_chunks`] and [`Schedule::mirrored_lanes`] with all steps.
///
/// # Errors
/// The first rank and round in which a claim is wrong, or a number of ranks, chunks, segments or lanes that is 0.
pub fn claims(schedule: &(impl Schedule + ?Sized)) -> Result<(), Counterexample> {
    let sizes = [schedule.ranks(), schedule.chunks(), schedule.segments(), schedule.lanes()];
    if let Some(none) = sizes.iter().position(|size| *size == 0) {
        let what =
            format!("a schedule must have 1 or more {}", ["ranks", "chunks", "segments", "lanes"][none]);
        return Err(Counterexample { rank: Rank(0), round: None, chunk: None, what });
    }
    (0..schedule.ranks()).try_for_each(|rank| next(schedule, Rank(rank)))?;
    (0..schedule.ranks()).try_for_each(|rank| pipeline(schedule, Rank(rank)))?;
    (0..schedule.ranks()).try_for_each(|rank| mirrored_lanes(schedule, Rank(rank)))?;
    schedule.symmetry().into_iter().try_for_each(|by| symmetry(schedule, by))
}

/// Checks `next` from the last round to the first: `next` of a round must be that round if the rank has a step in it, otherwise `next` of
/// the following round.
fn next(schedule: &(impl Schedule + ?Sized), rank: Rank) -> Result<(), Counterexample> {
    let (rounds, active) = (schedule.rounds(), schedule.active(rank));
    let mut following = None;
    for round in (0..=rounds).rev() {
        let fail = |what| Err(Counterexample { rank, round: Some(round), chunk: None, what });
        if round < rounds && !schedule.step(rank, round).is_idle() {
            following = Some(round);
            if !active.contains(&round) {
                return fail(format!("has a step, but `active` returns {active:?}"));
            }
        }
        let said = schedule.next(rank, round);
        if said != following {
            return fail(format!("`next` returns {said:?} instead of {following:?}"));
        }
    }
    Ok(())
}

/// Checks that every step belongs to one piece and that no piece is left out.
fn pipeline(schedule: &(impl Schedule + ?Sized), rank: Rank) -> Result<(), Counterexample> {
    let Some(Pipeline { of, pieces, lap }) = schedule.pipeline() else { return Ok(()) };
    let acts =
        |of: &dyn Schedule| successors(of.next(rank, 0), |round| of.next(rank, round + 1)).count() as u64;
    let mut steps = 0;
    let mut next = schedule.next(rank, 0);
    while let Some(round) = next {
        let step = schedule.step(rank, round);
        let span = step.send.map(|(_, span)| span).or(step.recv.map(|(_, span, _)| span));
        let segment = span.map_or(0, |span| span.segment);
        let own = round.checked_sub(u64::from(segment) * lap).filter(|ahead| ahead.is_multiple_of(pieces));
        let same =
            |own| of.step(rank, own / pieces).map(|peer| peer, |span| Span { segment, ..span }) == step;
        if !own.is_some_and(|own| own / pieces < of.rounds() && same(own)) {
            let what = format!("the step is not that of piece {segment} of `pipeline`");
            return Err(Counterexample { rank, round: Some(round), chunk: None, what });
        }
        steps += 1;
        next = schedule.next(rank, round + 1);
    }
    if steps == acts(of) * pieces {
        return Ok(());
    }
    let what = format!("has {steps} steps, but `pipeline` has {pieces} pieces of {} steps", acts(of));
    Err(Counterexample { rank, round: None, chunk: None, what })
}

/// Checks that a rank's steps in the first of two mirrored lanes are those of that lane's schedule, and that its steps in the second are
/// the mirrored rank's, on the other half of the chunks.
fn mirrored_lanes(schedule: &(impl Schedule + ?Sized), rank: Rank) -> Result<(), Counterexample> {
    let Some(MirroredLanes { block, lane }) = schedule.mirrored_lanes() else { return Ok(()) };
    let ranks = schedule.ranks();
    let fail = |round, what: &str| {
        let what = format!("{what}, but `mirrored_lanes` has blocks of {block}");
        Err(Counterexample { rank, round, chunk: None, what })
    };
    if block == 0 || !ranks.is_multiple_of(block) {
        return fail(None, &format!("there are {ranks} ranks"));
    }
    let mirror = |rank: Rank| rank.mirrored(block, ranks);
    let steps = |of: &dyn Schedule, rank: Rank| {
        let rounds: Vec<u64> = successors(of.next(rank, 0), |round| of.next(rank, round + 1)).collect();
        rounds.into_iter().map(|round| of.step(rank, round)).collect::<Vec<Step>>().into_iter()
    };
    let upper = |span: Span| Span { first_chunk: span.first_chunk + lane.chunks(), ..span };
    let mut first = steps(&*lane, rank);
    let mut second = steps(&*lane, mirror(rank)).map(|step| step.map(mirror, upper));
    for round in successors(schedule.next(rank, 0), |round| schedule.next(rank, round + 1)) {
        let want = if schedule.lane(round) < lane.lanes() { first.next() } else { second.next() };
        if want != Some(schedule.step(rank, round)) {
            return fail(Some(round), &format!("the lane's step is {want:?}"));
        }
    }
    match first.chain(second).next() {
        Some(left) => fail(None, &format!("the lane has the step {left:?} more")),
        None => Ok(()),
    }
}

/// Checks that every step with its ranks renumbered is the step of the renumbered rank, up to one renumbering of chunks.
fn symmetry(schedule: &(impl Schedule + ?Sized), by: Permutation) -> Result<(), Counterexample> {
    let ranks = schedule.ranks();
    let image = |rank: Rank| match by {
        Permutation::Rotate(d) => Rank(((u64::from(rank.0) + u64::from(d)) % u64::from(ranks)) as u32),
        Permutation::Xor(mask) => Rank(rank.0 ^ mask),
    };
    let fail = |rank, round, what| Err(Counterexample { rank, round, chunk: None, what });
    if matches!(by, Permutation::Xor(mask) if !ranks.is_power_of_two() || mask >= ranks) {
        return fail(Rank(0), None, format!("{by:?} does not renumber {ranks} ranks"));
    }
    // The image of each chunk under the renumbering, as far as steps with a single chunk determine it.
    let mut chunks = BTreeMap::new();
    // The chunk of which each image is the image, if the schedule claims that chunks are renumbered one to one.
    let (claimed, mut images) = (schedule.renumbers_chunks(), BTreeMap::new());
    let mut alike = |a: Span, b: Span| {
        let same = a.chunks != 1 || *chunks.entry(a.first_chunk).or_insert(b.first_chunk) == b.first_chunk;
        let one_to_one = !claimed
            || (a.chunks, a.region) == (1, b.region)
                && *images.entry(b.first_chunk).or_insert(a.first_chunk) == a.first_chunk;
        same && one_to_one && (a.chunks, a.segment) == (b.chunks, b.segment)
    };
    let mut same = |a: Step, b: Step| {
        let send = match (a.send, b.send) {
            (Some((to, span)), Some((to_b, span_b))) => image(to) == to_b && alike(span, span_b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let recv = match (a.recv, b.recv) {
            (Some((from, span, how)), Some((from_b, span_b, how_b))) => {
                image(from) == from_b && how == how_b && alike(span, span_b)
            }
            (a, b) => a.is_none() && b.is_none(),
        };
        send && recv
    };
    for rank in (0..ranks).map(Rank) {
        let mut from = 0;
        while let Some(round) = schedule.next(rank, from) {
            if !same(schedule.step(rank, round), schedule.step(image(rank), round)) {
                let what = format!("rank {} has another step, but `symmetry` returns {by:?}", image(rank));
                return fail(rank, Some(round), what);
            }
            from = round + 1;
        }
    }
    Ok(())
}
