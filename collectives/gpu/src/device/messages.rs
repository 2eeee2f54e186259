//! The message form: every round's steps as copies and reductions that read the peer's memory.
//!
//! ```text
//! round t, rank r receives from p:   stream r waits for p's writes, and for ranks that still read what r overwrites
//!      copy    r[into] = p[from]             2 bytes moved per byte
//!      reduce  r[into] = r[into] (+) p[from] 3 bytes
//! ```
//!
//! A step reads its peer's memory in place, unless the peer's own step of that round overwrites the memory. In that case the peer
//! first saves the earlier value in a separate buffer.

use super::job::DeviceCollective;
use crate::driver::failed;
use crate::schedule::{Combine, Region, Schedule, Span};
use crate::{DType, Error, Geometry, Rank, ReduceOp, Result};
use allfold_cuda::{Mark, Memory, Queue, Slice, launch};
use std::collections::{BTreeMap, BTreeSet};

/// Each rank's scratch copies, as large as its data, and a buffer for saved values.
pub(super) struct ScratchCopies {
    places: BTreeMap<(Rank, Option<u32>), Memory>,
}

impl ScratchCopies {
    pub fn new(
        schedule: &dyn Schedule,
        geometry: &Geometry,
        dtype: DType,
        queues: &[Queue],
    ) -> Result<ScratchCopies> {
        let bytes = geometry.count() as usize * dtype.size();
        let mut wanted = BTreeSet::new();
        for (rank, round) in steps(schedule) {
            let step = schedule.step(rank, round);
            if let (Some((_, from)), Some((_, into, _))) = (step.send, step.recv)
                && from.overlaps(&into)
            {
                wanted.insert((rank, None));
            }
            for span in
                [step.send.map(|(_, span)| span), step.recv.map(|(_, span, _)| span)].into_iter().flatten()
            {
                if let Region::Scratch(scratch) = span.region {
                    wanted.insert((rank, Some(scratch)));
                }
            }
        }
        let memory =
            |key: (Rank, Option<u32>)| Ok((key, queues[key.0.index()].memory(bytes).map_err(failed)?));
        Ok(ScratchCopies { places: wanted.into_iter().map(memory).collect::<Result<_>>()? })
    }

    pub fn into_memory(self) -> Vec<Memory> {
        self.places.into_values().collect()
    }
}

/// Every step that is not idle, in the order of rounds.
fn steps(schedule: &dyn Schedule) -> impl Iterator<Item = (Rank, u64)> + '_ {
    let ranks = schedule.ranks();
    (0..schedule.rounds()).flat_map(move |round| {
        (0..ranks)
            .map(move |rank| (Rank(rank), round))
            .filter(|&(rank, round)| !schedule.step(rank, round).is_idle())
    })
}

/// Launches the job's kernels once on dummy data, on every device, so that they are loaded.
pub(super) fn warm(job: &DeviceCollective, queues: &[Queue]) -> Result<()> {
    let mut seen = BTreeSet::new();
    for queue in queues.iter().filter(|queue| seen.insert(queue.device())) {
        let two = queue.upload(&[0u64; 2]).map_err(failed)?;
        let size = job.dtype.size();
        let (a, b) = (two.all().part(0, size).map_err(failed)?, two.all().part(8, size).map_err(failed)?);
        launch::reduce(queue, job.dtype, job.op, a, b).map_err(failed)?;
        launch::divide(queue, job.dtype, a, 1).map_err(failed)?;
        queue.finish().map_err(failed)?;
    }
    Ok(())
}

/// One collective to be queued on all streams.
pub(super) struct Run<'a> {
    pub job: &'a DeviceCollective,
    pub schedule: &'a dyn Schedule,
    pub geometry: &'a Geometry,
    pub scratch_copies: &'a ScratchCopies,
    pub buffers: &'a [Slice<'a>],
}

/// The events of the work that has been queued on the streams so far.
struct Progress {
    /// The event after each rank's last step.
    last: Vec<Option<Mark>>,
    /// For each rank: events of the ranks that have read its memory since it last waited for its readers.
    readers: Vec<BTreeMap<usize, Mark>>,
}

impl Run<'_> {
    /// Queues every round.
    pub fn all(&self, queues: &[Queue]) -> Result<()> {
        let ranks = queues.len();
        let mut progress = Progress { last: vec![None; ranks], readers: vec![BTreeMap::new(); ranks] };
        for round in 0..self.schedule.rounds() {
            self.round(queues, round, &mut progress)?;
        }
        let collective = self.job.algorithm.collective;
        if self.job.op == ReduceOp::Avg && collective.reduces() {
            for (rank, queue) in queues.iter().enumerate() {
                progress.readers[rank].values().try_for_each(|mark| queue.wait(mark)).map_err(failed)?;
                launch::divide(queue, self.job.dtype, self.buffers[rank], ranks as u32).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn round(&self, queues: &[Queue], round: u64, progress: &mut Progress) -> Result<()> {
        let steps: Vec<_> =
            (0..queues.len()).map(|rank| self.schedule.step(Rank(rank as u32), round)).collect();
        // Values that their own rank's step overwrites are saved first.
        let mut aside = vec![false; queues.len()];
        for (rank, step) in steps.iter().enumerate() {
            if let (Some((_, from)), Some((_, into, _))) = (step.send, step.recv)
                && from.overlaps(&into)
            {
                let place = self.aside(rank)?;
                if !queues[rank].machine().seeded(1) {
                    // The saved copy of an earlier round may still be read, so its readers come first.
                    let mut readers = progress.readers[rank].values();
                    readers.try_for_each(|mark| queues[rank].wait(mark)).map_err(failed)?;
                }
                for (range, _) in self.pairs(from, from) {
                    let (to, from) =
                        (self.cut(place, &range)?, self.cut(self.place(rank, from.region)?, &range)?);
                    queues[rank].copy(to, from).map_err(failed)?;
                }
                aside[rank] = true;
                progress.last[rank] = Some(queues[rank].mark().map_err(failed)?);
            }
        }
        // Reads wait for the other ranks' writes of earlier rounds. Writes of this round do not overlap what is read.
        let before = progress.last.clone();
        let readers = std::mem::replace(&mut progress.readers, vec![BTreeMap::new(); queues.len()]);
        for (rank, step) in steps.iter().enumerate() {
            let Some((peer, into, how)) = step.recv else {
                let seeded = queues[rank].machine().seeded(2);
                let now = &mut progress.readers[rank];
                for (by, mark) in &readers[rank] {
                    // A rank that has read again in this round has a later event.
                    if seeded || !now.contains_key(by) {
                        now.insert(*by, mark.clone());
                    }
                }
                continue;
            };
            let sent =
                steps.get(peer.index()).and_then(|step| step.send).filter(|(to, _)| to.index() == rank);
            let Some((_, from)) = sent else {
                let what = format!(
                    "rank {rank} expects a message from rank {peer} in round {round}, but rank {peer} sends none"
                );
                return Err(Error::Argument(what));
            };
            let queue = &queues[rank];
            let mut waits = before[peer.index()].iter().chain(readers[rank].values());
            waits.try_for_each(|mark| queue.wait(mark)).map_err(failed)?;
            let source = if aside[peer.index()] {
                self.aside(peer.index())?
            } else {
                self.place(peer.index(), from.region)?
            };
            let target = self.place(rank, into.region)?;
            for (from, into) in self.pairs(from, into) {
                let (from, into) = (self.cut(source, &from)?, self.cut(target, &into)?);
                match how {
                    Combine::Copy => queue.copy(into, from),
                    Combine::Reduce => launch::reduce(queue, self.job.dtype, self.job.op, into, from),
                }
                .map_err(failed)?;
            }
            let done = queue.mark().map_err(failed)?;
            progress.last[rank] = Some(done.clone());
            if peer.index() != rank {
                progress.readers[peer.index()].insert(rank, done);
            }
        }
        Ok(())
    }

    /// Pairs of element ranges of two spans, with equal lengths; neighbouring pairs are joined.
    fn pairs(&self, from: Span, into: Span) -> Vec<(std::ops::Range<u64>, std::ops::Range<u64>)> {
        let mut pairs: Vec<(std::ops::Range<u64>, std::ops::Range<u64>)> = Vec::new();
        let (mut sources, mut targets) = (self.geometry.ranges(from), self.geometry.ranges(into));
        let (mut a, mut b) = (0..0, 0..0);
        loop {
            // Takes the next source or target range when one is used up, and skips empty chunks.
            while a.is_empty() {
                let Some(next) = sources.next() else { return pairs };
                a = next;
            }
            while b.is_empty() {
                let Some(next) = targets.next() else { return pairs };
                b = next;
            }
            let n = (a.end - a.start).min(b.end - b.start);
            match pairs.last_mut() {
                Some((x, y)) if x.end == a.start && y.end == b.start => {
                    (x.end, y.end) = (x.end + n, y.end + n)
                }
                _ => pairs.push((a.start..a.start + n, b.start..b.start + n)),
            }
            (a.start, b.start) = (a.start + n, b.start + n);
        }
    }

    fn cut<'s>(&self, place: Slice<'s>, range: &std::ops::Range<u64>) -> Result<Slice<'s>> {
        let size = self.job.dtype.size();
        place.part(range.start as usize * size, (range.end - range.start) as usize * size).map_err(failed)
    }

    fn place(&self, rank: usize, place: Region) -> Result<Slice<'_>> {
        match place {
            Region::Data => Ok(self.buffers[rank]),
            Region::Scratch(scratch) => self.scratch(rank, Some(scratch)),
        }
    }

    fn aside(&self, rank: usize) -> Result<Slice<'_>> {
        self.scratch(rank, None)
    }

    fn scratch(&self, rank: usize, scratch: Option<u32>) -> Result<Slice<'_>> {
        let found = self.scratch_copies.places.get(&(Rank(rank as u32), scratch)).map(Memory::all);
        found.ok_or_else(|| {
            Error::Argument(format!("rank {rank} reads scratch copy {scratch:?}, where nothing was written"))
        })
    }
}
