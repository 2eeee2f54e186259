//! Pipelines on links that serve one message at a time, in an order that is known beforehand: no queue, no shares.
//!
//! ```text
//! time       0    1    2    3    4     piece p does round i at time i + p * stride, older pieces first;
//!   piece 0  r0   r1   r2              a message starts when both sides have posted it and every link of its path
//!   piece 1       r0   r1   r2         has served what comes before it in this order
//! ```
//!
//! Rounds are those of a [`timetable`] made of the schedule, in which no link is wanted by two messages at once; ranks
//! issue their steps in its order. (Steps that send and receive at once keep the schedule's own rounds.)
//!
//! It is another way to share a link than [`allfold_sim::Sharing`] has, and so gives another time; where no two messages
//! ever want one link at once all three are the same. Everything else is the execution rule. Where equal shares
//! keep a large tree in a turmoil that never repeats itself, here a time is the greatest of a few earlier times and
//! constants: one sweep in order of rounds finds them all, and sooner or later every piece does what the one before it
//! did, a constant span later. That is skipped ahead, exactly (F. Baccelli et al., "Synchronization and Linearity",
//! Wiley 1992, theorem 3.112: such a system becomes periodic).
//!
//! Cost: some 25 ns a message; memory for ranks x window, and for what a piece's steps wait for.

mod acts;
mod program;
#[cfg(test)]
mod tests;
mod timetable;

use super::representatives::Replicated;
use super::run::Run;
use super::{AllRanks, Error, Job, Method, Outcome, Representatives, merge_lanes};
use allfold_sim::{EventHash, Picos};
use program::{Program, Round};

/// Times a job whose links serve one message at a time. Equal lanes are served together, evenly.
///
/// # Errors
/// Faults of ranks or links, a deadline, or a schedule that is too long to keep.
pub(crate) fn run(job: &Job<'_>) -> Result<Outcome, Error> {
    let all_ranks = AllRanks::of(job.topology, job.faults);
    match merge_lanes::Lane::of(job) {
        Some(lane) => {
            let lanes = lane.lanes;
            let cast = Replicated { cast: &all_ranks, weight: lanes };
            let run = timed(&lane.job(job), &cast, true)?.times(lanes);
            Ok(Outcome { folded: lanes, ..run.outcome(job, &all_ranks, Method::SerialLinks)? })
        }
        None => timed(job, &all_ranks, true)?.outcome(job, &all_ranks, Method::SerialLinks),
    }
}

/// One run; where pieces repeat each other and it is allowed, they are skipped.
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

/// Times beyond this are taken as lost: they may have been cut.
const LAST: u64 = u64::MAX / 4;

/// Pieces after which a run is held against itself: it may repeat every one, two or four.
const PERIOD: u64 = 4;

/// The clocks of one run.
struct Sweep<'p> {
    program: &'p Program,
    representatives: usize,
    window: usize,
    /// Since when each representative may issue its next step, and when its last one is done.
    issue: Vec<u64>,
    finish: Vec<u64>,
    /// When the last `window` steps of each representative are done, step by step (row) and representative by representative (column), so that
    /// neighbours in a tree's level are neighbours here.
    done: Vec<u64>,
    /// The row of each representative's next step.
    row: Vec<u32>,
    /// Until when each link serves what came before.
    free: Vec<u64>,
    /// When steps are done that later ones of the same piece wait for.
    kept: Vec<u64>,
    /// When the messages of the last [`PERIOD`] pieces had left.
    left: Vec<u64>,
    /// When each step of the current round was posted.
    posted: Vec<u64>,
    ends: Vec<u64>,
}

/// What the messages of some rounds have in common: how much later they left than those [`PERIOD`] pieces before.
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

    /// The value that all have in common, if they do.
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

    /// When the last step of one piece ends if its messages have no bytes: no order of messages is faster.
    fn chain(mut self) -> u64 {
        for round in &self.program.rounds {
            self.round(round, 0, &self.program.least);
        }
        self.finish.into_iter().max().unwrap_or(0)
    }

    /// All pieces through all rounds. Gives how many pieces were skipped.
    fn all(&mut self, skip: bool) -> Result<u64, Error> {
        let program = self.program;
        let rounds = program.rounds.len() as u64;
        let (mut pieces, stride) = (program.pieces, program.stride);
        let memory = program.memory(self.window);
        let (mut time, mut skipped, mut ahead) = (0, 0, 0u64);
        // For how many times in a row all messages have come one span after those a period before, and that span.
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
            // No rank sends at this time, which says nothing about the order.
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

    /// One piece through one round, with the times of a message of each class.
    fn round(&mut self, round: &Round, piece: u64, times: &[program::Times]) -> Lag {
        let program = self.program;
        let place = |kept: &program::Kept| kept.first + (piece % kept.depth) as usize * kept.width;
        self.posted.clear();
        self.ends.clear();
        for step in &program.steps[round.steps.clone()] {
            let representative = step.representative as usize;
            // The step a whole window ago, and so all before it, must be done.
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
