//! Reads an MSCCL algorithm (XML) as a [`ScheduleTable`].
//!
//! ```text
//! gpu 0   tb 0   send=1 recv=3     s, rrs, rrs, rrcs, rcs, rcs, r        a thread block's steps run in order;
//!         tb 1   ..                                                      blocks run in parallel, except for `depid`
//! ```
//!
//! Every transfer becomes a step in the first round in which both ends are ready and their ports are free. A send reads its data
//! when its block reaches it, and the block continues while the send is in flight, as in MSCCL. If no other step can proceed, the
//! message is stored in a scratch buffer at the receiver. `rrs` reduces in a scratch copy. A slot of MSCCL's scratch buffer has no
//! size of its own: it is mapped to a chunk of a scratch copy that has the size of the chunk stored in the slot.
//!
//! Source of the format: msccl-tools (`ir.py`, `xml` output), M. Cowan, S. Maleki et al., "MSCCLang: Microsoft
//! collective communication language", ASPLOS 2023.

mod parse;

use super::{Combine, Rank, Region, Schedule, ScheduleTable, ScheduleTableError, Span};
use crate::Collective;
use parse::{Address, Algo, Block, Instruction, Kind, parse};
use std::collections::{BTreeMap, VecDeque};

impl ScheduleTable {
    /// The collective and the schedule of an MSCCL algorithm. The algorithm must work in place: an all-gather's input is the rank's
    /// block of its output, and a reduce-scatter's output is the rank's block of its input.
    ///
    /// # Errors
    /// The text is not an MSCCL algorithm, or its thread blocks wait for each other for ever; the error names the line.
    pub fn from_msccl(text: &str) -> Result<(Collective, ScheduleTable), ScheduleTableError> {
        let algo = parse(text)?;
        let mut weaver = Weaver::new(&algo)?;
        weaver.weave()?;
        Ok((algo.collective, weaver.table))
    }
}

/// A part of an instruction that takes one step of the schedule.
#[derive(Clone, Copy)]
enum Part {
    Send(Address),
    Recv(Address, Combine),
    Local(Address, Address, Combine),
}

/// The progress of one thread block.
struct Cursor<'a> {
    rank: Rank,
    block: &'a Block,
    /// The remaining parts of the block's current instruction.
    parts: VecDeque<Part>,
    /// For every finished instruction, the round from which on other instructions may rely on it.
    ends: Vec<u64>,
    /// The round from which on the block may act.
    ready: u64,
    /// The round from which on the block may send again.
    sends: u64,
    /// A chunk that the thread block has sent and that has not been received yet.
    pending: Option<Sent<'a>>,
}

/// A send in flight: its source, the round from which on it may be received, and its instruction.
#[derive(Clone, Copy)]
struct Sent<'a> {
    source: Address,
    since: u64,
    step: &'a Instruction,
}

/// A fourth buffer in addition to the three of the format, for the results of `rrs` and for messages that are stored at the receiver.
const OWN: char = 't';

struct Weaver<'a> {
    algo: &'a Algo,
    table: ScheduleTable,
    cursors: Vec<Cursor<'a>>,
    /// The index of the cursor that receives on a connection (from, to, channel).
    receivers: BTreeMap<(u32, u32, u32), usize>,
    /// By the receiving cursor: the messages stored at the receiver, each with the address of its first chunk, the number of chunks, and
    /// the round from which on it may be read.
    aside: BTreeMap<usize, VecDeque<(Address, u32, u64)>>,
    /// The chunk of the data that each scratch slot of a rank holds.
    held: BTreeMap<(Rank, char, u32), u32>,
    /// For each slot, the rounds from which on it may be overwritten and read.
    free: BTreeMap<(Rank, char, u32), (u64, u64)>,
    own: u32,
}

impl<'a> Weaver<'a> {
    fn new(algo: &'a Algo) -> Result<Weaver<'a>, ScheduleTableError> {
        let (mut cursors, mut receivers) = (Vec::new(), BTreeMap::new());
        for (rank, gpu) in (0u32..).zip(&algo.gpus) {
            for block in gpu.blocks.values() {
                if let Some(from) = block.recv {
                    receivers.insert((from, rank, block.channel), cursors.len());
                }
                let rank = Rank(rank);
                let (parts, ends, pending) = (VecDeque::new(), Vec::new(), None);
                cursors.push(Cursor { rank, block, parts, ends, ready: 0, sends: 0, pending });
            }
        }
        let table = ScheduleTable::new(algo.gpus.len() as u32, algo.chunks);
        let (aside, held, free) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Weaver { algo, table, cursors, receivers, aside, held, free, own: 0 })
    }

    fn weave(&mut self) -> Result<(), ScheduleTableError> {
        loop {
            let mut moved = false;
            for at in 0..self.cursors.len() {
                while self.advance(at)? {
                    moved = true;
                }
            }
            if moved {
                continue;
            }
            if let Some(at) = (0..self.cursors.len()).find(|at| self.cursors[*at].pending.is_some()) {
                self.put_aside(at)?;
                continue;
            }
            let stuck = self.cursors.iter().find(|cursor| self.current(cursor).is_some());
            return match stuck.and_then(|cursor| Some((cursor.rank, self.current(cursor)?.line))) {
                None => Ok(()),
                Some((rank, line)) => Err(ScheduleTableError {
                    line,
                    what: format!("gpu {rank} waits here forever: no step that it depends on can run"),
                }),
            };
        }
    }

    /// The current instruction of a block; `None` after its last instruction.
    fn current(&self, cursor: &Cursor<'a>) -> Option<&'a Instruction> {
        cursor.block.steps.get(cursor.ends.len())
    }

    /// Advances one block by one part of an instruction; false if the block must wait or has no more instructions.
    fn advance(&mut self, at: usize) -> Result<bool, ScheduleTableError> {
        if self.cursors[at].pending.is_some() && self.deliver(at)? {
            return Ok(true);
        }
        let Some(step) = self.current(&self.cursors[at]) else { return Ok(false) };
        if self.cursors[at].parts.is_empty() {
            let Some(after) = self.dependency(at, step)? else { return Ok(false) };
            let parts = self.parts(step);
            let cursor = &mut self.cursors[at];
            cursor.ready = cursor.ready.max(after);
            cursor.parts = parts;
            if cursor.parts.is_empty() {
                cursor.ends.push(cursor.ready);
                return Ok(true);
            }
        }
        let cursor = &self.cursors[at];
        let (rank, ready) = (cursor.rank, cursor.ready);
        match cursor.parts.front().copied() {
            Some(Part::Send(source)) if cursor.pending.is_none() => {
                self.receiver(at, step)?;
                let since = ready.max(cursor.sends);
                self.cursors[at].pending = Some(Sent { source, since, step });
                self.done(at, ready);
                Ok(true)
            }
            Some(Part::Local(from, into, how)) if !self.under_way(rank, into, step.count) => {
                let end = self.transfer((rank, from), (rank, into), step.count, how, ready, step.line)?;
                self.done(at, end);
                Ok(true)
            }
            Some(Part::Recv(into, how)) if !self.under_way(rank, into, step.count) => {
                let Some((from, count, since)) = self.aside.get_mut(&at).and_then(VecDeque::pop_front) else {
                    return Ok(false);
                };
                self.same(step, count)?;
                let end =
                    self.transfer((rank, from), (rank, into), count, how, ready.max(since), step.line)?;
                self.done(at, end);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Delivers what a block has sent, if the receiver waits for it.
    fn deliver(&mut self, at: usize) -> Result<bool, ScheduleTableError> {
        let Some(Sent { source, since, step }) = self.cursors[at].pending else { return Ok(false) };
        let (to, count) = (self.receiver(at, step)?, step.count);
        let theirs = &self.cursors[to];
        let (Some(&Part::Recv(into, how)), Some(wanted)) = (theirs.parts.front(), self.current(theirs))
        else {
            return Ok(false);
        };
        let queued = self.aside.get(&to).is_some_and(|queue| !queue.is_empty());
        if queued || self.under_way(theirs.rank, into, count) {
            return Ok(false);
        }
        self.same(wanted, count)?;
        let (from, peer, ready) = (self.cursors[at].rank, theirs.rank, theirs.ready.max(since));
        let end = self.transfer((from, source), (peer, into), count, how, ready, wanted.line)?;
        self.cursors[at].pending = None;
        self.cursors[at].sends = end;
        self.done(to, end);
        Ok(true)
    }

    /// Stores what a block has sent in a scratch buffer at the receiver.
    fn put_aside(&mut self, at: usize) -> Result<(), ScheduleTableError> {
        let Some(Sent { source, since, step }) = self.cursors[at].pending.take() else { return Ok(()) };
        let (to, count) = (self.receiver(at, step)?, step.count);
        let (from, peer, place) = (self.cursors[at].rank, self.cursors[to].rank, self.allocate(count));
        let end = self.transfer((from, source), (peer, place), count, Combine::Copy, since, step.line)?;
        self.cursors[at].sends = end;
        self.aside.entry(to).or_default().push_back((place, count, end));
        Ok(())
    }

    /// Ends a part of an instruction; the last part ends the instruction.
    fn done(&mut self, at: usize, end: u64) {
        let cursor = &mut self.cursors[at];
        cursor.ready = cursor.ready.max(end);
        cursor.parts.pop_front();
        if cursor.parts.is_empty() {
            cursor.ends.push(cursor.ready);
        }
    }

    /// The round from which on an instruction's dependency is met; `None` while it is not met.
    fn dependency(&self, at: usize, step: &Instruction) -> Result<Option<u64>, ScheduleTableError> {
        let Some((block, nth)) = step.after else { return Ok(Some(0)) };
        let rank = self.cursors[at].rank;
        let wanted = self.algo.gpus[rank.index()].blocks.get(&block);
        let found = self.cursors.iter().find(|c| wanted.is_some_and(|wanted| std::ptr::eq(c.block, wanted)));
        match found {
            Some(cursor) if (nth as usize) < cursor.block.steps.len() => {
                Ok(cursor.ends.get(nth as usize).copied())
            }
            _ => self.fail(step, format!("gpu {rank} has no step {nth} of tb {block} to depend on")),
        }
    }

    fn parts(&mut self, step: &Instruction) -> VecDeque<Part> {
        let (source, target) = (step.source, step.target);
        let moved = (source.buffer, source.at) != (target.buffer, target.at);
        let first = moved.then_some(Part::Local(source, target, Combine::Copy));
        let reduced = || first.into_iter().chain([Part::Recv(target, Combine::Reduce)]);
        match step.kind {
            Kind::S => [Part::Send(source)].into(),
            Kind::R => [Part::Recv(target, Combine::Copy)].into(),
            Kind::Rcs => [Part::Recv(target, Combine::Copy), Part::Send(target)].into(),
            Kind::Rrc => reduced().collect(),
            Kind::Rrcs => reduced().chain([Part::Send(target)]).collect(),
            Kind::Rrs => {
                let scratch = self.allocate(step.count);
                let copy = Part::Local(source, scratch, Combine::Copy);
                [copy, Part::Recv(scratch, Combine::Reduce), Part::Send(scratch)].into()
            }
            Kind::Cpy => first.into_iter().collect(),
            Kind::Re => [Part::Local(source, target, Combine::Reduce)].into(),
            Kind::Nop => VecDeque::new(),
        }
    }

    /// The index of the cursor that receives what the cursor `at` sends.
    fn receiver(&self, at: usize, step: &Instruction) -> Result<usize, ScheduleTableError> {
        let Cursor { rank, block, .. } = &self.cursors[at];
        let Some(to) = block.send else { return self.fail(step, "a block with send=\"-1\" sends".into()) };
        let receiver = self.receivers.get(&(rank.0, to, block.channel)).copied();
        let what =
            || format!("gpu {rank} sends to {to} on channel {}, where no step receives", block.channel);
        receiver.map_or_else(|| self.fail(step, what()), Ok)
    }

    /// Whether the chunks that are to be overwritten are the source of a send that has not left.
    fn under_way(&self, rank: Rank, into: Address, count: u32) -> bool {
        let target = self.key(rank, into, 0);
        let pending = self.cursors.iter().filter(|cursor| cursor.rank == rank).filter_map(|c| c.pending);
        pending.into_iter().any(|sent| {
            let source = self.key(rank, sent.source, 0);
            source.0 == target.0
                && source.1 < target.1.saturating_add(count)
                && target.1 < source.1.saturating_add(sent.step.count)
        })
    }

    /// Allocates `count` unused chunks in the fourth buffer.
    fn allocate(&mut self, count: u32) -> Address {
        let at = self.own;
        self.own = self.own.saturating_add(count);
        Address { buffer: OWN, at }
    }

    /// The buffer and the index of chunk `i` of an address: input and output are the same data, `d`.
    fn key(&self, rank: Rank, address: Address, i: u32) -> (char, u32) {
        let gpu = &self.algo.gpus[rank.index()];
        let at = address.at.saturating_add(i);
        let own = |small: u32, large: u32| if small < large { rank.0.saturating_mul(small) } else { 0 };
        match address.buffer {
            'i' => ('d', at.saturating_add(own(gpu.inputs, gpu.outputs))),
            'o' if gpu.outputs > 0 => ('d', at.saturating_add(own(gpu.outputs, gpu.inputs))),
            'o' => ('d', at),
            other => (other, at),
        }
    }

    /// The region and the chunk for a slot that holds `chunk`: consecutive slots with consecutive chunks are in one scratch copy.
    fn place(&self, (buffer, slot): (char, u32), chunk: u32) -> (Region, u32) {
        let first = match buffer {
            'd' => return (Region::Data, slot),
            OWN => self.algo.gpus.iter().map(|gpu| gpu.scratch).max().unwrap_or(0) + self.algo.chunks,
            _ => 0,
        };
        (Region::Scratch((first + self.algo.chunks - chunk).saturating_add(slot)), chunk)
    }

    /// Adds a transfer as one message, or as several if its chunks are scattered. Returns the round after the last message.
    fn transfer(
        &mut self,
        (from, source): (Rank, Address),
        (to, target): (Rank, Address),
        count: u32,
        how: Combine,
        ready: u64,
        line: usize,
    ) -> Result<u64, ScheduleTableError> {
        let mut runs: Vec<[(Region, u32, u32); 2]> = Vec::new();
        let mut round = ready;
        let slots = |i| (self.key(from, source, i), self.key(to, target, i));
        let slots: Vec<_> = (0..count).map(slots).collect();
        for (source, target) in &slots {
            let (a, b) = self.places((from, *source), (to, *target), how, line)?;
            match runs.last_mut() {
                Some([x, y]) if (x.0, x.1 + x.2) == a && (y.0, y.1 + y.2) == b => {
                    (x.2, y.2) = (x.2 + 1, y.2 + 1)
                }
                _ => runs.push([(a.0, a.1, 1), (b.0, b.1, 1)]),
            }
            let free = |rank, slot: &(char, u32)| {
                self.free.get(&(rank, slot.0, slot.1)).copied().unwrap_or_default()
            };
            round = round.max(free(from, source).1).max(free(to, target).0);
        }
        for run in runs {
            let [what, into] =
                run.map(|(place, at, len)| Span { region: place, first_chunk: at, chunks: len, segment: 0 });
            while self.table.step(from, round).send.is_some() || self.table.step(to, round).recv.is_some() {
                round += 1;
            }
            let transfer = self.table.transfer(round, (from, what), (to, into), how);
            transfer.map_err(|error| ScheduleTableError { line, ..error })?;
            round += 1;
        }
        for (source, target) in slots {
            self.free.entry((from, source.0, source.1)).or_default().0 = round - 1;
            self.free.insert((to, target.0, target.1), (round, round));
        }
        Ok(round)
    }

    /// The source and the target of one chunk. A scratch slot takes the number of the chunk that it receives.
    #[allow(clippy::type_complexity, reason = "two places")]
    fn places(
        &mut self,
        (from, source): (Rank, (char, u32)),
        (to, target): (Rank, (char, u32)),
        how: Combine,
        line: usize,
    ) -> Result<((Region, u32), (Region, u32)), ScheduleTableError> {
        let chunks = self.algo.chunks;
        if let Some((_, chunk)) =
            [source, target].into_iter().find(|(buffer, at)| *buffer == 'd' && *at >= chunks)
        {
            return Err(ScheduleTableError {
                line,
                what: format!("chunk {chunk} is outside 0 to {}", chunks - 1),
            });
        }
        let holds = |rank, (buffer, slot): (char, u32)| match buffer {
            'd' => Some(slot),
            _ => self.held.get(&(rank, buffer, slot)).copied(),
        };
        let Some(chunk) = holds(from, source) else {
            return Err(ScheduleTableError {
                line,
                what: format!("nothing was put into slot {} of gpu {from}", source.1),
            });
        };
        let kept = if how == Combine::Reduce || target.0 == 'd' { holds(to, target) } else { None };
        let there = kept.unwrap_or(chunk);
        self.held.insert((to, target.0, target.1), there);
        Ok((self.place(source, chunk), self.place(target, there)))
    }

    fn same(&self, step: &Instruction, count: u32) -> Result<(), ScheduleTableError> {
        if step.count == count {
            return Ok(());
        }
        self.fail(step, format!("receives {} chunks where {count} are sent", step.count))
    }

    fn fail<T>(&self, step: &Instruction, what: String) -> Result<T, ScheduleTableError> {
        Err(ScheduleTableError { line: step.line, what })
    }
}

#[cfg(test)]
mod tests;
