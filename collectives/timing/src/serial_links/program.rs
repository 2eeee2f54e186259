//! The steps and messages of one piece of a pipeline, arranged by round.
//!
//! ```text
//! round 2    steps     rank 4, rank 9, rank 5 ..     what each step waits for: earlier steps with the same piece
//!            messages  4 -> 9, ..                    links of the path, class of its times
//! ```

use super::super::rates::Rates;
use super::acts::{Acts, refusal};
use super::{Error, Job, Representatives};
use allfold_schedules::schedule::{Combine, Rank, Span, Step};
use allfold_sim::{Bytes, BytesPerSec, Crossing, LinkId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const NONE: u32 = u32::MAX;

/// The steps and messages of one piece, by round.
#[derive(Default)]
pub(super) struct Program {
    pub(super) pieces: u64,
    /// The number of rounds between a piece and the next.
    pub(super) stride: u64,
    pub(super) rounds: Vec<Round>,
    pub(super) steps: Vec<Act>,
    pub(super) blockers: Vec<Blocker>,
    pub(super) messages: Vec<Message>,
    /// The links of all messages, in order of messages.
    pub(super) paths: Vec<u32>,
    /// For each range of pieces of equal size: the times of each class.
    pub(super) times: Vec<Vec<Times>>,
    /// The times of each class for messages without bytes.
    pub(super) least: Vec<Times>,
    /// The first piece of each range of equal pieces, followed by the number of pieces.
    stretches: Vec<u64>,
    /// The number of step ends that are stored in all.
    pub(super) kept: usize,
    /// The number of steps that each representative has with a piece.
    pub(super) steps_of: Vec<u32>,
    /// The bytes in the messages of all pieces (`bytes`), and over each link (`links`).
    pub(super) bytes: u64,
    pub(super) links: Vec<u64>,
}

/// A round of a piece: its steps and its messages.
#[derive(Clone, Default)]
pub(super) struct Round {
    pub(super) steps: Range<usize>,
    pub(super) messages: Range<usize>,
    pub(super) kept: Kept,
}

/// Where the ends of a round's steps are stored, for the last `depth` pieces.
#[derive(Clone, Default)]
pub(super) struct Kept {
    pub(super) first: usize,
    pub(super) width: usize,
    pub(super) depth: u64,
}

/// A representative's step in a round.
#[derive(Clone, Copy)]
pub(super) struct Act {
    pub(super) representative: u32,
    /// The class of a local step within the rank; `u32::MAX` for any other step.
    pub(super) local: u32,
    /// The range of blockers in [`Program::blockers`], which are the steps that this step waits for.
    pub(super) blockers: (u32, u32),
}

/// An earlier step that a step waits for: its round, and its index in that round.
#[derive(Clone, Copy)]
pub(super) struct Blocker {
    pub(super) round: u32,
    pub(super) at: u32,
}

/// A message, with the indices of its two steps in their round.
#[derive(Clone, Copy)]
pub(super) struct Message {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) class: u32,
    /// The first and one past the last of the message's links in [`Program::paths`].
    pub(super) path: (u32, u32),
}

/// The times of a message, counted from its start; a local step has only `done`.
#[derive(Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) overhead: u64,
    pub(super) left: u64,
    pub(super) done: u64,
}

/// A class of messages with equal times: rate (`u32::MAX` within a rank), first chunk, number of chunks, whether they reduce.
type Class = (u32, u32, u32, bool);

struct Builder<'j, 'a, C> {
    job: &'j Job<'a>,
    cast: &'j C,
    rates: Rates,
    classes: BTreeMap<Class, u32>,
    /// The index of each representative's step in the current round.
    places: Vec<u32>,
    path: Vec<Crossing>,
}

impl Program {
    /// The program for the steps `acts`, which are given by round.
    pub(super) fn laid_out<C: Representatives>(
        job: &Job<'_>,
        cast: &C,
        acts: &Acts,
        pieces: u64,
        stride: u64,
    ) -> Result<Program, Error> {
        let mut program = Program {
            pieces,
            stride,
            rounds: vec![Round::default(); acts.len()],
            stretches: stretches(job, pieces),
            steps_of: vec![0; cast.representatives() as usize],
            links: vec![0; cast.links() as usize],
            ..Program::default()
        };
        acts.iter().flatten().for_each(|(representative, _)| program.steps_of[*representative as usize] += 1);
        let places = vec![NONE; cast.representatives() as usize];
        let mut builder = Builder {
            job,
            cast,
            rates: Rates::default(),
            classes: BTreeMap::new(),
            places,
            path: Vec::new(),
        };
        for (round, acts) in acts.iter().enumerate() {
            builder.round(&mut program, round, acts)?;
        }
        program.wait(acts);
        builder.times(&mut program)?;
        Ok(program)
    }

    /// The number of messages of one piece.
    pub(super) fn messages(&self) -> u64 {
        self.messages.len() as u64
    }

    /// The greatest number of steps of any representative, over all pieces.
    pub(super) fn most_steps(&self) -> u64 {
        self.steps_of.iter().map(|&steps| u64::from(steps)).max().unwrap_or(0).saturating_mul(self.pieces)
    }

    /// The index of the range of equal pieces to which `piece` belongs.
    pub(super) fn stretch(&self, piece: u64) -> usize {
        self.stretches.partition_point(|first| *first <= piece).saturating_sub(1)
    }

    /// The first piece after the range of equal pieces to which `piece` belongs.
    pub(super) fn end_of_stretch(&self, piece: u64) -> u64 {
        self.stretches.get(self.stretch(piece) + 1).copied().unwrap_or(self.pieces)
    }

    /// The number of earlier pieces on which a piece's times can depend, in steady state.
    pub(super) fn memory(&self, window: usize) -> u64 {
        let acting = self.steps_of.iter().copied().filter(|steps| *steps > 0);
        let fewest = acting.min().map_or(1, u64::from);
        let depth = self.rounds.iter().map(|round| round.kept.depth).max().unwrap_or(0);
        (window as u64).div_ceil(fewest).max(depth) + 2
    }

    /// Records which steps each step waits for, and for how many pieces the ends of steps must be stored.
    fn wait(&mut self, acts: &[Vec<(u32, Step)>]) {
        let mut before: Vec<Vec<(u32, u32)>> = vec![Vec::new(); self.steps_of.len()];
        for (round, here) in acts.iter().enumerate() {
            let first = self.rounds[round].steps.start;
            for (at, (representative, step)) in here.iter().enumerate() {
                let from = self.blockers.len() as u32;
                for &(earlier, place) in &before[*representative as usize] {
                    let other = &acts[earlier as usize][place as usize].1;
                    if step.conflicts(other) {
                        self.blockers.push(Blocker { round: earlier, at: place });
                        let kept = &mut self.rounds[earlier as usize].kept;
                        kept.depth = kept.depth.max((round as u64 - u64::from(earlier)) / self.stride + 1);
                    }
                }
                self.steps[first + at].blockers = (from, self.blockers.len() as u32);
                before[*representative as usize].push((round as u32, at as u32));
            }
        }
        for round in &mut self.rounds {
            round.kept.depth = round.kept.depth.min(self.pieces);
            round.kept.width = round.steps.len();
            round.kept.first = self.kept;
            self.kept += round.kept.width * round.kept.depth as usize;
        }
    }
}

impl<C: Representatives> Builder<'_, '_, C> {
    fn round(&mut self, program: &mut Program, round: usize, acts: &[(u32, Step)]) -> Result<(), Error> {
        let (first, sent) = (program.steps.len(), program.messages.len());
        (0u32..)
            .zip(acts)
            .for_each(|(place, (representative, _))| self.places[*representative as usize] = place);
        let (mut sends, mut receives) = (0usize, 0usize);
        for (representative, step) in acts {
            let rank = self.cast.rank(*representative);
            let local = step.send.is_some_and(|(to, _)| to == rank);
            let class = match step.recv {
                Some((_, span, how)) if local => {
                    self.class((NONE, span.first_chunk, span.chunks, how == Combine::Reduce))
                }
                _ => NONE,
            };
            program.steps.push(Act { representative: *representative, local: class, blockers: (0, 0) });
            sends += usize::from(step.send.is_some() && !local);
            receives += usize::from(step.recv.is_some() && !local);
        }
        for (place, (representative, step)) in (0u32..).zip(acts) {
            let rank = self.cast.rank(*representative);
            let Some((from, into, how)) = step.recv.filter(|(from, ..)| *from != rank) else { continue };
            let lost = || unmatched(rank, round, format!("waits for rank {from}, which does not send to it"));
            let sender = (from.0 < self.job.schedule.ranks())
                .then(|| self.cast.representative(from))
                .ok_or_else(lost)?;
            let at = self.places[sender as usize];
            let sent = acts
                .get(at as usize)
                .filter(|(representative, _)| *representative == sender)
                .and_then(|(_, step)| step.send);
            let (_, span) = sent.filter(|(to, _)| *to == rank).ok_or_else(lost)?;
            let message = self.message(program, (from, rank), (span, into), how == Combine::Reduce, round)?;
            program.messages.push(Message { from: at, to: place, ..message });
        }
        if sends != receives || receives != program.messages.len() - sent {
            let rank = acts.first().map_or(Rank(0), |(representative, _)| self.cast.rank(*representative));
            let what = format!("and others send {sends} messages, of which {receives} are received");
            return Err(unmatched(rank, round, what));
        }
        program.rounds[round].steps = first..program.steps.len();
        program.rounds[round].messages = sent..program.messages.len();
        Ok(())
    }

    fn message(
        &mut self,
        program: &mut Program,
        (from, to): (Rank, Rank),
        (span, into): (Span, Span),
        reduces: bool,
        round: usize,
    ) -> Result<Message, Error> {
        let fits = |span: &Span| {
            u64::from(span.first_chunk) + u64::from(span.chunks) <= self.job.schedule.chunks().into()
        };
        if !fits(&span) || !fits(&into) || self.total(span) != self.total(into) {
            return Err(unmatched(from, round, format!("sends {span}, which rank {to} receives as {into}")));
        }
        self.path.clear();
        let latency = self.cast.route(from, to, &mut self.path);
        let share = |crossing: &Crossing| {
            let bandwidth = self.cast.link(crossing.link).bandwidth.0;
            BytesPerSec((bandwidth / u64::from(crossing.weight)).max(1))
        };
        let bandwidth = self.path.iter().map(share).min();
        let rate = self.rates.rate(self.job.costs, bandwidth, latency);
        let bytes = self.total(span);
        program.bytes = program.bytes.saturating_add(bytes);
        let first = program.paths.len() as u32;
        for Crossing { link: LinkId(link), weight } in &self.path {
            program.paths.push(*link);
            let over = &mut program.links[*link as usize];
            *over = over.saturating_add(bytes.saturating_mul(u64::from(*weight)));
        }
        let path =
            (first, u32::try_from(program.paths.len()).map_err(|_| refusal("its paths are too long"))?);
        let class = self.class((rate, span.first_chunk, span.chunks, reduces));
        Ok(Message { from: 0, to: 0, class, path })
    }

    fn class(&mut self, class: Class) -> u32 {
        let next = self.classes.len() as u32;
        *self.classes.entry(class).or_insert(next)
    }

    /// The bytes of a span in one piece.
    fn bytes(&self, span: Span) -> u64 {
        self.job.geometry.elements(span) * u64::from(self.job.element)
    }

    /// The bytes of a span in all pieces.
    fn total(&self, span: Span) -> u64 {
        let elements =
            (span.first_chunk..span.first_chunk + span.chunks).map(|chunk| self.job.geometry.chunk(chunk));
        elements.map(|chunk| chunk.end - chunk.start).sum::<u64>() * u64::from(self.job.element)
    }

    /// The times of every class, for each range of equal pieces and for messages without bytes.
    fn times(&mut self, program: &mut Program) -> Result<(), Error> {
        let mut classes: Vec<(Class, u32)> = self.classes.iter().map(|(class, at)| (*class, *at)).collect();
        classes.sort_unstable_by_key(|(_, at)| *at);
        let overhead = self.job.costs.overhead.0;
        let mut of = |(rate, at, len, reduces): Class, segment: u32, empty: bool| {
            let bytes = if empty { 0 } else { self.bytes(Span { segment, ..Span::data(at, len) }) };
            if rate == NONE {
                let done = self.job.costs.local(Bytes(bytes), reduces).0;
                return Times { overhead: 0, left: 0, done };
            }
            let times = self.rates.times(rate, bytes);
            Times { overhead, left: times.left, done: if reduces { times.reduced } else { times.arrived } }
        };
        let mut all = |segment, empty| classes.iter().map(|(class, _)| of(*class, segment, empty)).collect();
        for first in &program.stretches[..program.stretches.len() - 1] {
            let segment = u32::try_from(*first).map_err(|_| Error::Overflow("the number of a piece"))?;
            program.times.push(all(segment, false));
        }
        program.least = all(0, true);
        Ok(())
    }
}

/// The pieces at which the size of pieces changes: the first piece of each range, and the number of pieces.
fn stretches(job: &Job<'_>, pieces: u64) -> Vec<u64> {
    let mut stretches = BTreeSet::from([0, pieces]);
    for chunk in 0..job.schedule.chunks() {
        let chunk = job.geometry.chunk(chunk);
        stretches.insert((chunk.end - chunk.start) % pieces);
    }
    stretches.into_iter().collect()
}

fn unmatched(rank: Rank, round: usize, what: String) -> Error {
    Error::Unmatched { rank, round: round as u64, what }
}
