//! A call of one size on one rank over NCCL: its buffers, its stretches and the check of its result.

use super::gpus::system;
use super::inputs::{self, Sample};
use super::nccl_results::{expected_part, far, parts};
use super::ranks::{Data, Seen, Timing};
use crate::call::plan::{CallPlan, Choice};
use allfold_collectives::meaning::{On, Portion};
use allfold_collectives::{Communicator, Error, ReduceOp};
use allfold_cuda::{Mark, Memory, Queue, Slice};
use allfold_gpu::nccl::{self, CommBuffer, NcclCall, NcclComm, Registration};
use allfold_sim::Picos;
use allfold_sim::hash::splitmix;
use std::sync::Arc;
use std::time::{Duration, Instant};

const WHAT: &str = "finish a collective";

/// Issues the calls of a stretch.
type Calls<'a> = dyn Fn(&mut NcclComm) -> Result<(), Error> + 'a;

/// The number of groups of consecutive calls that are timed, for the standard error of the mean, and the fewest calls of one: the first
/// calls of a group find an idle device.
const STRETCHES: u32 = 5;
const FEWEST: u32 = 20;

/// The rank or ranks whose times count, as nccl-tests numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// Rank 0's.
    First,
    /// The mean over all ranks.
    Mean,
    /// The least of all ranks.
    Least,
    /// The greatest of all ranks.
    Greatest,
}

/// How calls are issued and timed.
#[derive(Clone, Copy, Debug)]
pub struct Issue {
    /// The number of collectives that are issued as one group.
    pub aggregate: u32,
    /// Whether the host waits for each call.
    pub blocking: bool,
    /// Whether the host's time for issuing calls counts, and not the GPU's for running them.
    pub host_time: bool,
    /// The ranks whose times count.
    pub average: Average,
    /// How NCCL knows the buffers, if they are registered.
    pub registration: Option<Registration>,
    /// How often a graph of the calls is replayed; 0 to issue the calls themselves.
    pub replays: u32,
    /// Whether each call is timed alone too.
    pub times_each: bool,
    /// How long ranks wait for each other and for their devices.
    pub deadline: Duration,
}

/// The calls of a stretch, and the number of all calls that are timed.
pub fn calls(timing: Timing) -> (u32, u32) {
    let each = timing.iterations.div_ceil(STRETCHES).max(FEWEST);
    (each, STRETCHES * each)
}

/// What a rank measures, and where.
pub(super) struct MeasuredRank<'a> {
    pub choice: &'a Choice,
    pub timing: Timing,
    pub issue: Issue,
    pub comm: &'a Communicator,
    pub queue: Queue,
}

/// A call of one size on one rank, with its buffers.
pub(super) struct RankCall<'a, T: Sample> {
    pub of: &'a MeasuredRank<'a>,
    pub plan: CallPlan,
    pub exact: Option<Arc<Data<T>>>,
    pub input: CommBuffer,
    pub output: CommBuffer,
    /// The elements of the whole buffer.
    pub whole: usize,
    pub in_place: bool,
}

impl<T: Sample> RankCall<'_, T> {
    /// The rank's input and its result, in their buffers.
    fn slices(&self) -> Result<(Slice<'_>, Slice<'_>), Error> {
        let (rank, block) = (self.of.comm.rank().index(), self.plan.count as usize * size_of::<T>());
        let row = self.of.choice.collective.meaning();
        let own = |memory: &'_ Memory| (rank * block).min(memory.len() - block.min(memory.len()));
        let cut = |memory, portion, at| match portion {
            Portion::Block => Memory::all(memory).part(at, block).map_err(system),
            _ => Ok(Memory::all(memory)),
        };
        let from = if self.in_place { &self.output } else { &self.input };
        let at = if self.in_place { own(&self.output) } else { 0 };
        Ok((cut(from, row.input.part, own(from))?, cut(&self.output, row.output.part, at)?))
    }

    fn issue(&self, nccl: &mut NcclComm) -> Result<(), Error> {
        let Choice { collective, dtype, op, shape, algorithm, .. } = *self.of.choice;
        if algorithm.is_some() {
            let (rank, plan) = (self.of.comm.rank(), &self.plan);
            let divide = collective.reduces() && op == ReduceOp::Avg;
            let (schedule, data) = (&*plan.schedule, self.output.all());
            return nccl::run_scheduled(nccl, rank, schedule, &plan.geometry, (dtype, op), divide, data);
        }
        let (input, output) = self.slices()?;
        nccl.collective(NcclCall { collective, dtype, op, root: shape.root(), input, output })
    }

    /// NCCL's own estimate. NCCL can estimate single collectives only: a scheduled collective contains groups of its own.
    pub fn estimate(&self, nccl: &mut NcclComm) -> Option<f64> {
        let native = self.of.choice.algorithm.is_none();
        native.then(|| nccl.estimate(|nccl| self.issue(nccl)).ok()).flatten().filter(|us| *us >= 0.0)
    }

    /// Writes the rank's input to both buffers.
    fn prepare(&self) -> Result<(), Error> {
        let (rank, seed) = (self.of.comm.rank().0, self.of.timing.seed);
        for places in parts(self.whole, self.whole) {
            let values: Vec<T> = inputs::part(seed, rank, places.clone());
            for memory in [&self.input, &self.output] {
                let (at, bytes) = (places.start * size_of::<T>(), values.len() * size_of::<T>());
                let part = memory.all().part(at, bytes).map_err(system)?;
                self.of.queue.write(part, &values).map_err(system)?;
            }
        }
        Ok(())
    }

    pub fn measure(&self, nccl: &mut NcclComm) -> Result<Seen, Error> {
        let MeasuredRank { timing, issue: Issue { aggregate, blocking, replays, times_each, .. }, .. } =
            *self.of;
        let queue = &self.of.queue;
        self.prepare()?;
        self.issue(nccl)?;
        nccl.wait(WHAT)?;
        let checked = if timing.check { Some(self.check()?) } else { None };
        let call = |nccl: &mut NcclComm| {
            match aggregate {
                0 | 1 => self.issue(nccl)?,
                many => nccl.grouped(|nccl| (0..many).try_for_each(|_| self.issue(nccl)))?,
            }
            if blocking { nccl.wait(WHAT) } else { Ok(()) }
        };
        // So many calls fill NCCL's queue, in which a rank whose peer is lost would wait; none is waited for while a graph is captured.
        let waits = |at: u32| replays == 0 && (at + 1).is_multiple_of(nccl::OUTSTANDING);
        let bounded = |nccl: &mut NcclComm, at| {
            call(nccl)?;
            if waits(at) { nccl.wait(WHAT) } else { Ok(()) }
        };
        (0..timing.warmup).try_for_each(|at| bounded(nccl, at))?;
        nccl.wait(WHAT)?;
        let each = calls(timing).0;
        let marks = || queue.record().map_err(system);
        let alone =
            if times_each { (0..=each).map(|_| marks()).collect::<Result<Vec<_>, _>>()? } else { Vec::new() };
        let all = |nccl: &mut NcclComm| {
            alone.first().map_or(Ok(()), |first| first.move_to(queue).map_err(system))?;
            (0..each).try_for_each(|at| {
                bounded(nccl, at)?;
                alone.get(at as usize + 1).map_or(Ok(()), |mark| mark.move_to(queue).map_err(system))
            })
        };
        let mut seen = Seen { checked, ..Seen::default() };
        let many = each * aggregate.max(1);
        match replays {
            0 => self.stretches(nccl, many, (&all, &alone), &mut seen)?,
            _ => nccl.replaying(all, |nccl, replay| {
                let again = |_: &mut NcclComm| (0..replays).try_for_each(|_| replay());
                self.stretches(nccl, many * replays, (&again, &[]), &mut seen)
            })?,
        }
        Ok(seen)
    }

    /// Times the stretches of so many calls, each of which `issue` issues. `alone` are the marks before and behind each call, if calls are
    /// timed alone.
    fn stretches(
        &self,
        nccl: &mut NcclComm,
        calls: u32,
        (issue, alone): (&Calls<'_>, &[Mark]),
        seen: &mut Seen,
    ) -> Result<(), Error> {
        let Issue { host_time, aggregate, .. } = self.of.issue;
        let queue = &self.of.queue;
        let (from, to) = (queue.record().map_err(system)?, queue.record().map_err(system)?);
        for _ in 0..STRETCHES {
            self.of.comm.barrier()?;
            #[allow(clippy::disallowed_methods, reason = "the host's time for issuing calls is measured")]
            let begun = Instant::now();
            from.move_to(queue).map_err(system)?;
            issue(nccl)?;
            to.move_to(queue).map_err(system)?;
            let issued = begun.elapsed().as_nanos() as u64;
            nccl.wait(WHAT)?;
            let nanoseconds = if host_time { issued } else { from.until(&to).map_err(system)? };
            seen.times.push(Picos(1000 * nanoseconds / u64::from(calls)));
            for pair in alone.windows(2) {
                let nanoseconds = pair[0].until(&pair[1]).map_err(system)?;
                seen.each.push(Picos(1000 * nanoseconds / u64::from(aggregate.max(1))));
            }
        }
        Ok(())
    }

    /// Gives the buffers back. Every rank must call this.
    pub fn free(self, nccl: &mut NcclComm) -> Result<(), Error> {
        nccl.free(self.input)?;
        nccl.free(self.output)
    }

    /// The number of wrong elements of the rank's result, the first of them, and the result's hash.
    fn check(&self) -> Result<(u64, Option<usize>, u64), Error> {
        let (choice, rank) = (self.of.choice, self.of.comm.rank());
        let row = choice.collective.meaning();
        let (count, root) = (self.plan.count as usize, choice.shape.root());
        let (_, output) = self.slices()?;
        let block = row.output.part == Portion::Block;
        let results = match block {
            _ if row.output.on == On::Root && rank != root => 0,
            true => count,
            false => self.whole,
        };
        // A schedule leaves a rank's block at its place in the whole buffer.
        let first = if self.exact.is_some() && block { rank.index() * count } else { 0 };
        let output = if self.exact.is_some() { self.output.all() } else { output };
        let (mut wrong, mut at, mut hash) = (0, None, splitmix((results * size_of::<T>()) as u64));
        for places in parts(results, count) {
            let (from, bytes) = ((first + places.start) * size_of::<T>(), places.len() * size_of::<T>());
            let got: Vec<T> =
                self.of.queue.download(output.part(from, bytes).map_err(system)?).map_err(system)?;
            let expected = self.exact.as_ref().and_then(|data| data.expected.as_ref());
            let (bad, place) = match expected {
                Some(all) => {
                    let whole = &all[rank.index()][first + places.start..][..places.len()];
                    inputs::differing(&got, whole)
                }
                None => {
                    far(&got, &expected_part(choice, self.of.timing.seed, (count, rank), &places), choice)
                }
            };
            (wrong, hash) = (wrong + bad, inputs::hash_on(hash, &got));
            at = at.or(place.map(|place| places.start + place));
        }
        Ok((wrong, at, hash))
    }
}
