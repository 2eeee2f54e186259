//! Any schedule of the table over NCCL, by grouped sends and receives and Allfold's kernels, with the bits of the schedule's trees.
//!
//! ```text
//! a round:   pack what is sent (if its chunks are not adjacent)
//!            group { send; receive into a separate buffer }     both halves are posted before a wait for either
//!            copy or reduce the received data into its place     so a send carries the value from before its step
//! ```

use super::comm::NcclComm;
use crate::driver::failed;
use crate::schedule::{Combine, Region, Schedule, Span};
use crate::{DType, Error, Geometry, Rank, ReduceOp, Result};
use allfold_cuda::{Memory, Queue, Slice, launch};
use std::collections::BTreeMap;

/// A rank's buffers during one collective.
struct Store<'a> {
    queue: Queue,
    data: Slice<'a>,
    geometry: &'a Geometry,
    dtype: DType,
    op: ReduceOp,
    scratch_copies: BTreeMap<u32, Memory>,
}

impl Store<'_> {
    /// The contiguous parts of a span in order, without empty parts; adjacent parts are joined.
    fn parts(&self, span: Span) -> Result<Vec<Slice<'_>>> {
        let whole = match span.region {
            Region::Data => self.data,
            Region::Scratch(scratch) => {
                let found = self.scratch_copies.get(&scratch).map(Memory::all);
                found.ok_or_else(|| {
                    Error::Argument(format!("a step reads scratch copy {scratch}, where nothing was written"))
                })?
            }
        };
        let mut ranges: Vec<std::ops::Range<u64>> = Vec::new();
        for range in self.geometry.ranges(span).filter(|range| !range.is_empty()) {
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        let size = self.dtype.size();
        let cut =
            |r: &std::ops::Range<u64>| whole.part(r.start as usize * size, (r.end - r.start) as usize * size);
        ranges.iter().map(|range| cut(range).map_err(failed)).collect()
    }

    /// The bytes of a span as one slice: a copy in `aside` if they are not contiguous, or if their current value must be preserved
    /// (`keep`).
    fn packed<'s>(&'s self, span: Span, keep: bool, aside: &'s Memory) -> Result<Slice<'s>> {
        let parts = self.parts(span)?;
        if let ([part], false) = (&parts[..], keep) {
            return Ok(*part);
        }
        let mut at = 0;
        for part in parts {
            self.queue.copy(aside.all().part(at, part.len()).map_err(failed)?, part).map_err(failed)?;
            at += part.len();
        }
        aside.all().part(0, at).map_err(failed)
    }

    /// Copies or reduces received data into the parts of a span.
    fn apply(&self, span: Span, how: Combine, came: Slice<'_>) -> Result<()> {
        let mut at = 0;
        for part in self.parts(span)? {
            let from = came.part(at, part.len()).map_err(failed)?;
            match how {
                Combine::Copy => self.queue.copy(part, from).map_err(failed)?,
                Combine::Reduce => {
                    launch::reduce(&self.queue, self.dtype, self.op, part, from).map_err(failed)?;
                }
            }
            at += part.len();
        }
        Ok(())
    }
}

/// Runs one rank's part of a schedule in place over its whole data, which has the geometry's count of elements. The work is queued
/// on the stream of `comm` and waited for; with `divide`, the data is divided by the ranks at the end. A failed run aborts `comm`.
///
/// # Errors
/// Lengths that do not fit, a schedule that cannot be run, or a failure of NCCL.
pub fn run_scheduled(
    comm: &mut NcclComm,
    rank: Rank,
    schedule: &dyn Schedule,
    geometry: &Geometry,
    (dtype, op): (DType, ReduceOp),
    divide: bool,
    data: Slice<'_>,
) -> Result<()> {
    let queue = comm.queue.clone();
    if data.elements(dtype.size()).map_err(failed)? != geometry.count() {
        return Err(Error::Argument(format!(
            "a buffer of {} bytes was passed for {} x {dtype}; both must be equally large",
            data.len(),
            geometry.count()
        )));
    }
    let (out, came) = (queue.memory(data.len()).map_err(failed)?, queue.memory(data.len()).map_err(failed)?);
    let mut store =
        Store { queue: queue.clone(), data, geometry, dtype, op, scratch_copies: BTreeMap::new() };
    let ran = rounds(comm, rank, schedule, &mut store, (&out, &came)).and_then(|()| {
        if divide {
            launch::divide(&queue, dtype, data, schedule.ranks()).map_err(failed)?;
        }
        // The separate buffers are freed after all queued work has run.
        comm.wait("finish a scheduled collective")
    });
    // The abort is first, because freeing buffers that a kernel still uses would wait for ever.
    ran.inspect_err(|_| {
        comm.abandon();
    })
}

/// Sends and receives at the same time. Each part is contiguous and must not change until the stream has executed the exchange.
fn exchange(
    comm: &mut NcclComm,
    send: Option<(Slice<'_>, Rank)>,
    recv: Option<(Slice<'_>, Rank)>,
) -> Result<()> {
    comm.group("exchange a round", |comm| {
        send.map_or(Ok(()), |(data, to)| comm.post_send(data, to))?;
        recv.map_or(Ok(()), |(data, from)| comm.post_recv(data, from))
    })
}

/// Runs the rank's steps, one after another.
fn rounds(
    comm: &mut NcclComm,
    rank: Rank,
    schedule: &dyn Schedule,
    store: &mut Store<'_>,
    (out, came): (&Memory, &Memory),
) -> Result<()> {
    let mut next = schedule.next(rank, 0);
    while let Some(round) = next {
        next = schedule.next(rank, round + 1);
        let step = schedule.step(rank, round);
        if let Some((_, Span { region: Region::Scratch(scratch), .. }, _)) = step.recv
            && !store.scratch_copies.contains_key(&scratch)
        {
            store.scratch_copies.insert(scratch, store.queue.memory(store.data.len()).map_err(failed)?);
        }
        let local = step.send.is_some_and(|(to, _)| to == rank);
        let packed = |(to, span)| Ok::<_, Error>((store.packed(span, local, out)?, to));
        let send: Option<(Slice<'_>, Rank)> = step.send.map(packed).transpose()?;
        if let (true, Some((value, _)), Some((_, into, how))) = (local, send, step.recv) {
            store.apply(into, how, value)?;
            continue;
        }
        let bytes = |span| store.geometry.elements(span) as usize * store.dtype.size();
        let aside =
            |(from, span, _)| Ok::<_, Error>((came.all().part(0, bytes(span)).map_err(failed)?, from));
        let recv: Option<(Slice<'_>, Rank)> = step.recv.map(aside).transpose()?;
        // Chunks may be empty. Both sides then exchange no message.
        let some = |half: Option<(Slice<'_>, Rank)>| half.is_some_and(|(part, _)| !part.is_empty());
        if some(send) || some(recv) {
            exchange(comm, send.filter(|half| some(Some(*half))), recv.filter(|half| some(Some(*half))))?;
        }
        if let (Some((_, span, how)), Some((value, _))) = (step.recv, recv) {
            store.apply(span, how, value)?;
        }
    }
    Ok(())
}
