//! A timetable for a pipeline whose own rounds leave links idle: rounds in which no two messages need the same link.
//!
//! ```text
//! a link's messages of one piece     m1 m2 m3 m4    each has its own slot modulo the stride, at both ends
//! time                               0  1  2  3 | 4  5  6  7 | ...
//!                                    m1 m4 m2 m3  m1 m4 m2 m3     the next piece, and so on: the link is never idle
//! ```
//!
//! A message is an edge between the link out of its sender and the link into its receiver. Repeatedly splitting the edges of every
//! link into two halves gives each message a slot (D. König's edge colouring of bipartite graphs, by Euler partitions: H. Gabow,
//! Int. J. Comput. Inf. Sci. 5 (1976)). Steps that wait for each other keep their order, with additional slots while the earlier
//! message is still in flight.

use super::acts::{Acts, acts, refusal};
use super::program::Program;
use super::{Error, Job, Representatives};
use allfold_schedules::schedule::{Schedule, Step};

const NONE: u32 = u32::MAX;
/// The greatest number of slots for a message in flight; a message that is longer in flight delays later messages.
const FLIGHT: u64 = 32;

/// The program of a job: by a timetable if the job has several pieces and no step sends and receives at once, otherwise by its own
/// rounds.
pub(super) fn program<C: Representatives>(job: &Job<'_>, cast: &C) -> Result<Program, Error> {
    let (of, pieces, lap): (&dyn Schedule, u64, u64) = match job.schedule.pipeline() {
        Some(pipeline) => (pipeline.of, pipeline.pieces, pipeline.lap),
        None => (job.schedule, u64::from(job.schedule.segments()), 1),
    };
    let stride = if pieces == 1 { 1 } else { (lap - 1) / pieces };
    if stride == 0 {
        return Err(refusal(
            "the pipeline's pieces start at irregular rounds; serial_links needs a constant stride",
        ));
    }
    let acts = acts(of, cast)?;
    let own = Program::laid_out(job, cast, &acts, pieces, stride)?;
    let table = retimed(&own, &acts, cast.links() as usize).filter(|_| pieces > 1);
    let Some((table, stride)) = table else { return Ok(own) };
    // Both values are large, so they are freed before the next one is built.
    drop((own, acts));
    Program::laid_out(job, cast, &table, pieces, stride)
}

/// The program's steps in rounds of the timetable, and the timetable's stride. `None` if steps send and receive at once, because
/// both messages of such a step have the same round.
pub(super) fn retimed(program: &Program, acts: &Acts, links: usize) -> Option<(Acts, u64)> {
    let ends = ends(program);
    let mut taken = vec![false; program.steps.len()];
    for step in ends.iter().flat_map(|(from, to)| [*from, *to]) {
        if std::mem::replace(&mut taken[step], true) {
            return None;
        }
    }
    let (slots, stride) = slots(program, links);
    let flight = flight(program);
    let mut at = vec![0u64; program.steps.len()];
    let mut lands = vec![0u64; program.steps.len()];
    for round in &program.rounds {
        let earliest = |step: usize, lands: &[u64]| {
            let (first, last) = program.steps[step].blockers;
            let waits = program.blockers[first as usize..last as usize].iter();
            let step = |round: u32, at: u32| program.rounds[round as usize].steps.start + at as usize;
            waits.map(|blocker| lands[step(blocker.round, blocker.at)]).max().unwrap_or(0)
        };
        for step in round.steps.clone() {
            at[step] = earliest(step, &lands);
            lands[step] = at[step] + 1;
        }
        for message in round.messages.clone() {
            let (from, to) = ends[message];
            let least = at[from].max(at[to]);
            let slot = least + (u64::from(slots[message]) + stride - least % stride) % stride;
            (at[from], at[to]) = (slot, slot);
            (lands[from], lands[to]) = (slot + 1, slot + 1 + flight);
        }
    }
    let (turn, turns) = turns(program, &at, &ends);
    let rounds = at.iter().max().map_or(0, |last| last + 1) * turns;
    let mut table = vec![Vec::new(); usize::try_from(rounds).ok()?];
    for ((&slot, &turn), act) in at.iter().zip(&turn).zip(acts.iter().flatten()) {
        table[(slot * turns + turn) as usize].push(*act);
    }
    table.iter_mut().for_each(|acts: &mut Vec<(u32, Step)>| {
        acts.sort_unstable_by_key(|(representative, _)| *representative)
    });
    Some((table, stride * turns))
}

/// A rank has one step per round, so its steps of one slot take turns. Returns the turn of every step within its slot, and the
/// number of turns per slot.
fn turns(program: &Program, at: &[u64], ends: &[(usize, usize)]) -> (Vec<u64>, u64) {
    let representative = |step: usize| program.steps[step].representative as usize;
    let mut messages = vec![false; at.len()];
    ends.iter().for_each(|&(from, to)| (messages[from], messages[to]) = (true, true));
    let lone = (0..at.len()).filter(|step| !messages[*step]).map(|step| (step, step));
    let mut pairs: Vec<(usize, usize)> = ends.iter().copied().chain(lone).collect();
    pairs.sort_by_key(|(from, _)| at[*from]);
    let mut taken = vec![0u64; program.steps_of.len()];
    let (mut turn, mut most) = (vec![0; at.len()], 0);
    for slot in pairs.chunk_by(|one, other| at[one.0] == at[other.0]) {
        for &(from, to) in slot {
            // The limit prevents a shift past the last bit; a rank never has 63 steps in one slot.
            let free = (taken[representative(from)] | taken[representative(to)]).trailing_ones().min(63);
            taken[representative(from)] |= 1 << free;
            taken[representative(to)] |= 1 << free;
            (turn[from], turn[to]) = (free.into(), free.into());
            most = most.max(u64::from(free));
        }
        slot.iter().for_each(|&(from, to)| (taken[representative(from)], taken[representative(to)]) = (0, 0));
    }
    (turn, most + 1)
}

/// The indices of every message's two steps, counted over all rounds.
fn ends(program: &Program) -> Vec<(usize, usize)> {
    let of = |round: &super::Round| {
        let first = round.steps.start;
        let messages = &program.messages[round.messages.clone()];
        messages.iter().map(move |message| (first + message.from as usize, first + message.to as usize))
    };
    program.rounds.iter().flat_map(of).collect()
}

/// The number of slots for which the slowest message is in flight and being combined after it has left.
fn flight(program: &Program) -> u64 {
    let slots =
        |times: &super::program::Times| (times.done.saturating_sub(times.left)).div_ceil(times.left.max(1));
    program.times.iter().flatten().map(slots).max().unwrap_or(0).min(FLIGHT)
}

/// The slot of every message, and the number of slots, which is a power of two.
fn slots(program: &Program, links: usize) -> (Vec<u32>, u64) {
    let outer = |message: usize| {
        let (first, last) = program.messages[message].path;
        let path = &program.paths[first as usize..last as usize];
        [path.first().copied().unwrap_or(NONE), path.last().copied().unwrap_or(NONE)]
    };
    let paths: Vec<[u32; 2]> = (0..program.messages.len()).map(outer).collect();
    let mut load = vec![[0u32; 2]; links];
    for (side, &link) in
        paths.iter().flat_map(|path| path.iter().enumerate()).filter(|(_, link)| **link != NONE)
    {
        load[link as usize][side] += 1;
    }
    let most = load.iter().flatten().copied().max().unwrap_or(1).max(1);
    let halvings = most.next_power_of_two().ilog2();
    let mut slots = vec![0u32; paths.len()];
    for halving in 0..halvings {
        halve(&paths, &mut slots, halving, links);
    }
    (slots, 1 << halvings)
}

/// Splits the messages of every slot into halves with equally many messages of each link, or one more in one half.
fn halve(paths: &[[u32; 2]], slots: &mut [u32], halving: u32, links: usize) {
    // At each end, messages of one slot and link are joined in pairs; the two messages of a pair must go into different halves.
    let width = 1usize << halving;
    let mut pairs = vec![[NONE; 2]; paths.len()];
    let mut open = vec![[NONE; 2]; links * width];
    for (message, path) in (0u32..).zip(paths) {
        for (side, &link) in path.iter().enumerate().filter(|(_, link)| **link != NONE) {
            let alone = &mut open[link as usize * width + slots[message as usize] as usize][side];
            match std::mem::replace(alone, NONE) {
                NONE => *alone = message,
                other => {
                    pairs[message as usize][side] = other;
                    pairs[other as usize][side] = message;
                }
            }
        }
    }
    // The pairs form paths, and cycles of even length, since they alternate between the two ends.
    let mut seen = vec![false; paths.len()];
    let lone = |message: &usize| pairs[*message].contains(&NONE);
    for first in (0..paths.len()).filter(lone).chain(0..paths.len()) {
        let mut side = usize::from(pairs[first][0] == NONE);
        let (mut message, mut half) = (first, 0);
        while !std::mem::replace(&mut seen[message], true) {
            slots[message] |= half << halving;
            let next = pairs[message][side];
            if next == NONE {
                break;
            }
            (message, half, side) = (next as usize, 1 - half, 1 - side);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn halving_parts_the_messages_of_every_link(paths in prop::collection::vec([0u32..6, 6u32..12], 0..60)) {
            let mut slots = vec![0; paths.len()];
            for halving in 0..3 {
                let before = slots.clone();
                halve(&paths, &mut slots, halving, 12);
                for link in 0..12u32 {
                    for slot in 0..1u32 << halving {
                        let on = |at: &usize| paths[*at].contains(&link) && before[*at] == slot;
                        let all = (0..paths.len()).filter(on).count();
                        let upper = (0..paths.len()).filter(|at| on(at) && slots[*at] != slot).count();
                        prop_assert!(upper.abs_diff(all - upper) <= 1, "link {link}: {upper} of {all}");
                    }
                }
            }
        }
    }
}
