//! An engine for pipelines on links that serve one message at a time, in a predetermined order: no event queue, no shares.
//!
//! ```text
//! time       0    1    2    3    4     piece p does round i at time i + p * stride, older pieces first;
//!   piece 0  r0   r1   r2              a message starts when both sides have posted it and every link of its path
//!   piece 1       r0   r1   r2         has served what comes before it in this order
//! ```
//!
//! The rounds are those of a [`timetable`] made from the schedule, in which no two messages need the same link at once; ranks issue
//! their steps in the order of the timetable. (Steps that send and receive at once keep the schedule's own rounds.)
//!
//! Links that serve one message at a time differ from the ways of sharing in [`allfold_sim::Sharing`] and give different times; if
//! no two messages ever need the same link at once, all three agree. All else follows the execution rule. With equal shares, the
//! state of a large tree may never repeat. Here each time is the greatest of a few earlier times plus constants: one sweep in order
//! of rounds finds them all, and eventually every piece does what the previous piece did, a constant span later. The repetition is
//! skipped, exactly (F. Baccelli et al., "Synchronization and Linearity", Wiley 1992, theorem 3.112: such a system becomes
//! periodic).
//!
//! Cost: about 25 ns per message; memory for ranks x window, and for the dependencies of a piece's steps.

mod acts;
mod program;
#[cfg(test)]
mod tests;
mod timetable;

use super::representatives::replicated;
use super::run::Run;
use super::{AllRanks, Error, Job, Method, Outcome, Representatives, merge_lanes};
use allfold_sim::{EventHash, Picos};
use program::{Program, Round};

/// Times a job whose links serve one message at a time. Equal lanes are merged into one lane.
///
/// # Errors
/// The job has faults or a deadline, its pieces start at irregular rounds, two halves of a message do not match, or its schedule is
/// too long to store.
pub(crate) fn run(job: &Job<'_>) -> Result<Outcome, Error> {
    let all_ranks = AllRanks::of(job.topology, job.faults);
    match merge_lanes::Lane::of(job) {
        Some(lane) => {
            let lanes = lane.lanes;
            let cast = replicated(&all_ranks, lanes);
            let run = timed(&lane.job(job), &cast, true)?.times(lanes);
            Ok(Outcome { folded: lanes, ..run.outcome(job, &all_ranks, Method::SerialLinks)? })
        }
        None => timed(job, &all_ranks, true)?.outcome(job, &all_ranks, Method::SerialLinks),
    }
}

/// Times one run. With `skip`, pieces that repeat earlier pieces are skipped.
fn timed(job: &Job<'_>, cast: &impl Representatives, skip: bool) -> Result<Run, Error> {
    if !job.faults.is_empty() || job.deadline.is_some() {
        return Err(Error::Job(
            "serial_links: a fault or a deadline needs links that are shared; share them (`split`)".into(),
        ));
    }
    let program = timetable::program(job, cast)?;
    let chain = Sweep::new(job, cast, &program).chain();
    let mut sweep = Sweep::new(job, cast, &program);
    let skipped = sweep.all(skip)?;
    let mut hash = EventHash::default();
    (0u32..).zip(&sweep.finish).for_each(|(representative, &finish)| hash.message(representative, finish));
    Ok(Run {
        finish: sweep.finish.into_iter().map(Picos).collect(),
        chain: Picos(chain),
        messages: program.messages() * program.pieces,
        bytes: program.bytes,
        links: program.links.clone(),
        hash: hash.value(),
        skipped: program.messages() * skipped,
    })
}

/// Times beyond this limit are an overflow, because an addition may have saturated.
const LAST: u64 = u64::MAX / 4;

/// The period, in pieces, after which a run is compared with itself; it may repeat after one, two or four pieces.
const PERIOD: u64 = 4;

/// The clocks of one run on serial links.
struct Sweep<'p> {
    program: &'p Program,
    representatives: usize,
    window: usize,
    /// When each representative may issue its next step (`issue`), and when its last step is done (`finish`).
    issue: Vec<u64>,
    finish: Vec<u64>,
    /// When the last `window` steps of each representative are done, with a row per step and a column per representative, so that
    /// neighbours in a level of a tree are adjacent in memory.
    done: Vec<u64>,
    /// The row of each representative's next step.
    row: Vec<u32>,
    /// When each link has served all earlier messages.
    free: Vec<u64>,
    /// When each step is done that later steps of the same piece wait for.
    kept: Vec<u64>,
    /// When the messages of the last [`PERIOD`] pieces left.
    left: Vec<u64>,
    /// When each step of the current round was posted.
    posted: Vec<u64>,
    ends: Vec<u64>,
}

/// By how much later messages of some rounds left than the same messages [`PERIOD`] pieces before: the least and greatest
/// difference.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lag {
    least: u64,
    most: u64,
}

impl Lag {
    const NONE: Lag = Lag { least: u64::MAX, most: 0 };

    fn of(self, other: Lag) -> Lag {
        Lag { least: self.least.min(other.least), most: self.most.max(other.most) }
    }

    /// The difference that all messages have in common, if they have one.
    fn one(self) -> Option<u64> {
        (self.least == self.most).then_some(self.least)
    }
}

impl<'p> Sweep<'p> {
    fn new(job: &Job<'_>, cast: &impl Representatives, program: &'p Program) -> Sweep<'p> {
        let representatives = cast.representatives();
        let launch: Vec<u64> =
            (0..representatives).map(|representative| job.launched(cast.rank(representative)).0).collect();
        let window = u64::from(job.window).min(program.most_steps().max(1)) as usize;
        Sweep {
            program,
            representatives: representatives as usize,
            window,
            finish: launch.clone(),
            issue: launch,
            done: vec![0; window * representatives as usize],
            row: vec![0; representatives as usize],
            free: vec![0; cast.links() as usize],
            kept: vec![0; program.kept],
            left: vec![0; (program.messages() * PERIOD) as usize],
            posted: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// When the last step of one piece ends if messages have no bytes: no order of messages is faster.
    fn chain(mut self) -> u64 {
        for round in &self.program.rounds {
            self.round(round, 0, &self.program.least);
        }
        self.finish.into_iter().max().unwrap_or(0)
    }

    /// Runs all pieces through all rounds. Returns the number of skipped pieces.
    fn all(&mut self, skip: bool) -> Result<u64, Error> {
        let program = self.program;
        let rounds = program.rounds.len() as u64;
        let (mut pieces, stride) = (program.pieces, program.stride);
        let memory = program.memory(self.window);
        let (mut time, mut skipped, mut ahead) = (0, 0, 0u64);
        // For how many rounds all messages left a constant span after those of a period before (`steady`), and that span.
        let (mut steady, mut span) = (0, 0);
        while time < (pieces - 1) * stride + rounds {
            let oldest = (time + 1).saturating_sub(rounds).div_ceil(stride);
            let newest = (time / stride).min(pieces - 1);
            let mut lag = Lag::NONE;
            for piece in oldest..=newest {
                let round = &program.rounds[(time - piece * stride) as usize];
                let times = &program.times[program.stretch(piece + skipped)];
                lag = lag.of(self.round(round, piece, times));
            }
            time += 1;
            let full = time >= rounds + PERIOD * stride && time / stride < pieces;
            let replicated_lanes = program.stretch(oldest + skipped) == program.stretch(newest + skipped);
            // No rank sends at this time, so there is nothing to compare.
            if lag == Lag::NONE {
                steady += u64::from(steady > 0);
                continue;
            }
            steady = match lag.one() {
                Some(same) if skip && full && replicated_lanes && (steady == 0 || same == span) => {
                    span = same;
                    steady + 1
                }
                _ => 0,
            };
            if steady >= memory * stride && time.is_multiple_of(stride) {
                let end = program.end_of_stretch(newest + skipped).min(pieces + skipped);
                let more = (end - skipped).saturating_sub(newest + 1) / PERIOD * PERIOD;
                (pieces, skipped, steady) = (pieces - more, skipped + more, 0);
                ahead = ahead.saturating_add(span.saturating_mul(more / PERIOD));
            }
        }
        let acts = |representative: usize| program.steps_of[representative] > 0;
        let finish = self.finish.iter_mut().enumerate().filter(|(representative, _)| acts(*representative));
        finish.for_each(|(_, finish)| *finish = finish.saturating_add(ahead));
        match self.finish.iter().all(|finish| *finish < LAST) {
            true => Ok(skipped),
            false => Err(Error::Overflow("the time in picoseconds")),
        }
    }

    /// Runs one piece through one round; `times` has the times of each class of messages.
    fn round(&mut self, round: &Round, piece: u64, times: &[program::Times]) -> Lag {
        let program = self.program;
        let place = |kept: &program::Kept| kept.first + (piece % kept.depth) as usize * kept.width;
        self.posted.clear();
        self.ends.clear();
        for step in &program.steps[round.steps.clone()] {
            let representative = step.representative as usize;
            // The step a window ago, and therefore every step before it, must be done.
            let before = self.done[self.row[representative] as usize * self.representatives + representative];
            self.issue[representative] = self.issue[representative].max(before);
            let mut posted = self.issue[representative];
            for blocker in &program.blockers[step.blockers.0 as usize..step.blockers.1 as usize] {
                let kept = &program.rounds[blocker.round as usize].kept;
                posted = posted.max(self.kept[place(kept) + blocker.at as usize]);
            }
            self.posted.push(posted);
            self.ends.push(match step.local {
                u32::MAX => posted,
                class => posted.saturating_add(times[class as usize].done),
            });
        }
        let mut lag = Lag::NONE;
        let column = (piece % PERIOD * program.messages()) as usize;
        let messages = round.messages.clone().zip(&program.messages[round.messages.clone()]);
        for (number, message) in messages {
            let (from, to) = (message.from as usize, message.to as usize);
            let took = times[message.class as usize];
            let links = &program.paths[message.path.0 as usize..message.path.1 as usize];
            let free = links.iter().fold(0, |free, &link| self.free[link as usize].max(free));
            let start = self.posted[from].max(self.posted[to]).max(free.saturating_sub(took.overhead));
            let left = start.saturating_add(took.left);
            links.iter().for_each(|&link| self.free[link as usize] = left);
            self.ends[from] = self.ends[from].max(left);
            self.ends[to] = self.ends[to].max(start.saturating_add(took.done));
            let last = &mut self.left[column + number];
            let behind = left - std::mem::replace(last, left);
            lag = lag.of(Lag { least: behind, most: behind });
        }
        let kept = (round.kept.depth > 0).then(|| place(&round.kept));
        for (at, (step, &end)) in program.steps[round.steps.clone()].iter().zip(&self.ends).enumerate() {
            let representative = step.representative as usize;
            let row = &mut self.row[representative];
            self.done[*row as usize * self.representatives + representative] = end;
            *row = if *row as usize + 1 == self.window { 0 } else { *row + 1 };
            self.finish[representative] = self.finish[representative].max(end);
            if let Some(kept) = kept {
                self.kept[kept + at] = end;
            }
        }
        lag
    }
}
