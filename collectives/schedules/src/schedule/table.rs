//! A schedule made of explicit transfers: irregular, written by hand, or read from a file.
//!
//! The text has one transfer per line: `ROUND FROM TO CHUNK [copy|reduce]`. CHUNK is `at`, `at+len`, or `at>to` if the receiver
//! stores the chunk at another index. Either end may be in a scratch copy, `s0:at`. A `#` begins a comment.
//!
//! ```text
//! ranks 3 chunks 1
//! 0  1 0  0 reduce      # rank 1's chunk 0 into rank 0's
//! 1  2 0  0 reduce
//! 2  0 1  0 copy
//! 3  0 2  0 copy
//! ```

use super::{Combine, Rank, Region, Schedule, Span, Step};
use std::collections::BTreeMap;
use std::str::FromStr;

/// A schedule with explicit steps; a rank without a step in a round is idle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleTable {
    chunks: u32,
    rounds: u64,
    steps: Vec<BTreeMap<u64, Step>>,
    owners: Option<Vec<Rank>>,
}

/// The error for a faulty schedule table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ScheduleTableError {
    /// The line, from 1; 0 if the table was not read from text.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl ScheduleTable {
    /// A table without steps.
    pub fn new(ranks: u32, chunks: u32) -> ScheduleTable {
        ScheduleTable { chunks, rounds: 0, steps: vec![BTreeMap::new(); ranks as usize], owners: None }
    }

    /// A table with the steps of another schedule.
    pub fn copy_of(schedule: &(impl Schedule + ?Sized)) -> ScheduleTable {
        let mut table = ScheduleTable::new(schedule.ranks(), schedule.chunks());
        for rank in (0..schedule.ranks()).map(Rank) {
            let mut from = 0;
            while let Some(round) = schedule.next(rank, from) {
                table.set(rank, round, schedule.step(rank, round));
                from = round + 1;
            }
        }
        table.rounds = schedule.rounds();
        table.owners = Some((0..schedule.chunks()).map(|chunk| schedule.owner(chunk)).collect());
        table
    }

    /// Sets the step of a rank in a round, which replaces an earlier one.
    ///
    /// # Panics
    /// The table has no such rank.
    pub fn set(&mut self, rank: Rank, round: u64, step: Step) {
        self.rounds = self.rounds.max(round.saturating_add(1));
        self.steps[rank.index()].insert(round, step);
    }

    /// Adds one transfer: the send of one rank and the receive of another.
    ///
    /// # Errors
    /// A rank or a chunk is outside the table, or a rank already sends or receives in this round.
    pub fn transfer(
        &mut self,
        round: u64,
        (from, what): (Rank, Span),
        (to, into): (Rank, Span),
        how: Combine,
    ) -> Result<(), ScheduleTableError> {
        let fail = |what: String| Err(ScheduleTableError { line: 0, what });
        if let Some(stranger) = [from, to].into_iter().find(|rank| rank.index() >= self.steps.len()) {
            return fail(format!("rank {stranger} is outside 0 to {}", self.steps.len().saturating_sub(1)));
        }
        for span in [what, into] {
            if span.chunks == 0
                || u64::from(span.first_chunk) + u64::from(span.chunks) > u64::from(self.chunks)
            {
                let last = self.chunks.saturating_sub(1);
                return fail(format!(
                    "chunks {} + {} lie outside 0 to {last}",
                    span.first_chunk, span.chunks
                ));
            }
        }
        let sends = self.steps[from.index()].entry(round).or_default();
        if sends.send.is_some() {
            return fail(format!("rank {from} sends twice in round {round}"));
        }
        sends.send = Some((to, what));
        let receives = self.steps[to.index()].entry(round).or_default();
        if receives.recv.is_some() {
            return fail(format!("rank {to} receives twice in round {round}"));
        }
        receives.recv = Some((from, into, how));
        self.rounds = self.rounds.max(round.saturating_add(1));
        Ok(())
    }
}

impl FromStr for ScheduleTable {
    type Err = ScheduleTableError;

    fn from_str(text: &str) -> Result<ScheduleTable, ScheduleTableError> {
        let mut table: Option<ScheduleTable> = None;
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split('#').next().unwrap_or("").split_whitespace().collect();
            let here = |what: String| ScheduleTableError { line: number + 1, what };
            match (words.as_slice(), &mut table) {
                ([], _) => {}
                (["ranks", ranks, "chunks", chunks], None) => {
                    let (ranks, chunks) = (integer(ranks).map_err(here)?, integer(chunks).map_err(here)?);
                    if ranks == 0 || chunks == 0 || ranks > 1 << 20 {
                        return Err(here("ranks and chunks are at least 1, ranks at most 1048576".into()));
                    }
                    table = Some(ScheduleTable::new(ranks, chunks));
                }
                ([round, from, to, what, how @ ..], Some(table)) if how.len() <= 1 => {
                    let round = u64::from(integer(round).map_err(here)?);
                    let (from, to) = (Rank(integer(from).map_err(here)?), Rank(integer(to).map_err(here)?));
                    let (what, into) = spans(what).map_err(here)?;
                    let how = match how {
                        [] | ["copy"] => Combine::Copy,
                        ["reduce"] => Combine::Reduce,
                        other => {
                            return Err(here(format!(
                                "`{}` is unknown; expected copy or reduce",
                                other.concat()
                            )));
                        }
                    };
                    table
                        .transfer(round, (from, what), (to, into), how)
                        .map_err(|error| ScheduleTableError { line: number + 1, ..error })?;
                }
                (_, None) => return Err(here("the first line must be `ranks N chunks C`".into())),
                _ => return Err(here("a transfer must be `ROUND FROM TO CHUNK [copy|reduce]`".into())),
            }
        }
        table.ok_or_else(|| ScheduleTableError {
            line: 1,
            what: "the first line must be `ranks N chunks C`".into(),
        })
    }
}

fn integer(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| format!("`{word}` is not a whole number below 2^32"))
}

/// Parses the spans of a transfer: `[sK:]at[+len][>[sK:]to]`.
fn spans(word: &str) -> Result<(Span, Span), String> {
    let place = |word: &str| match word.split_once(':') {
        None => Ok((Region::Data, integer(word)?)),
        Some((number, at)) => match number.strip_prefix('s') {
            Some(number) => Ok((Region::Scratch(integer(number)?), integer(at)?)),
            None => Err(format!("`{number}` is not a scratch copy; scratch copies are called s0, s1, ..")),
        },
    };
    let (left, to) = word.split_once('>').map_or((word, None), |(left, to)| (left, Some(to)));
    let (at, len) = left.split_once('+').map_or((left, "1"), |(at, len)| (at, len));
    let ((from_place, at), len) = (place(at)?, integer(len)?);
    let (to_place, to) = to.map_or(Ok((from_place, at)), place)?;
    let span = |place, at| Span { region: place, first_chunk: at, chunks: len, segment: 0 };
    Ok((span(from_place, at), span(to_place, to)))
}

impl Schedule for ScheduleTable {
    fn ranks(&self) -> u32 {
        self.steps.len() as u32
    }
    fn chunks(&self) -> u32 {
        self.chunks
    }
    fn rounds(&self) -> u64 {
        self.rounds
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        self.steps[rank.index()].get(&round).copied().unwrap_or_default()
    }
    fn next(&self, rank: Rank, round: u64) -> Option<u64> {
        let mut ahead = self.steps[rank.index()].range(round..);
        ahead.find(|(_, step)| !step.is_idle()).map(|(round, _)| *round)
    }
    fn owner(&self, chunk: u32) -> Rank {
        let share = u64::from(chunk) * u64::from(self.ranks()) / u64::from(self.chunks);
        self.owners.as_ref().map_or(Rank(share as u32), |owners| owners[chunk as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Star, halving};
    use crate::check;
    use crate::{Collective, registry};

    const STAR: &str = "
        ranks 3 chunks 1
        0  1 0  0 reduce      # rank 1's chunk 0 into rank 0's
        1  2 0  0>s0:0        # rank 2's waits in a scratch copy
        2  0 0  s0:0>0 reduce
        3  0 1  0 copy
        4  0 2  0
    ";

    #[test]
    fn a_table_is_a_schedule_like_any_other() {
        let table: ScheduleTable = STAR.parse().unwrap();
        let proof = check::check(&table, Collective::AllReduce, Rank(0)).unwrap();
        assert_eq!(proof.order(), Some(check::Order::Canonical));
        assert_eq!(table.rounds(), 5);
    }

    #[test]
    fn any_schedule_can_be_written_out() {
        for row in registry::ALGORITHMS {
            let schedule = row.build(registry::Shape::new(7).unwrap()).unwrap();
            let table = ScheduleTable::copy_of(&schedule);
            assert_eq!(check::check(&table, row.collective, Rank(0)).err(), None, "{row:?}");
        }
        let star = Star::reduce(5, Rank(2));
        let (a, b) = (
            check::check(&ScheduleTable::copy_of(&star), Collective::Reduce, Rank(2)).unwrap(),
            check::check(&star, Collective::Reduce, Rank(2)).unwrap(),
        );
        assert_eq!(a.hash(), b.hash());
        assert_eq!(ScheduleTable::copy_of(&halving(6)).owner(3), halving(6).owner(3));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(lines in proptest::collection::vec("[0-9]{1,2}( [0-3]){0,2}( [s0-9:>+]{1,6})?( copy| reduce)?", 0..9)) {
            let text = format!("ranks 4 chunks 9\n{}", lines.join("\n"));
            match text.parse::<ScheduleTable>() {
                Ok(table) => assert_eq!(table.ranks(), 4),
                Err(error) => assert!((2..=lines.len() + 1).contains(&error.line), "{error}"),
            }
        }
    }

    #[test]
    fn errors_of_a_text_name_the_line() {
        let wrong = |text: &str| text.parse::<ScheduleTable>().unwrap_err().to_string();
        assert_eq!(wrong(""), "line 1: the first line must be `ranks N chunks C`");
        assert_eq!(wrong("0 1 0 0"), "line 1: the first line must be `ranks N chunks C`");
        assert_eq!(
            wrong("ranks 0 chunks 1"),
            "line 1: ranks and chunks are at least 1, ranks at most 1048576"
        );
        assert_eq!(
            wrong("ranks 2 chunks 1\n0 0 1"),
            "line 2: a transfer must be `ROUND FROM TO CHUNK [copy|reduce]`"
        );
        assert_eq!(wrong("ranks 2 chunks 1\n\n0 0 2 0"), "line 3: rank 2 is outside 0 to 1");
        assert_eq!(wrong("ranks 2 chunks 1\n0 0 1 0+2"), "line 2: chunks 0 + 2 lie outside 0 to 0");
        assert_eq!(wrong("ranks 2 chunks 1\n0 0 1 x"), "line 2: `x` is not a whole number below 2^32");
        assert_eq!(
            wrong("ranks 2 chunks 1\n0 0 1 0 add"),
            "line 2: `add` is unknown; expected copy or reduce"
        );
        assert_eq!(
            wrong("ranks 2 chunks 1\n0 0 1 q0:0"),
            "line 2: `q0` is not a scratch copy; scratch copies are called s0, s1, .."
        );
        let twice = "ranks 3 chunks 1\n0 0 1 0\n0 0 2 0";
        assert_eq!(wrong(twice), "line 3: rank 0 sends twice in round 0");
    }
}
