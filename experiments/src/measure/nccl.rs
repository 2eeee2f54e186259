//! Collectives by NCCL, on ranks that are threads or processes, timed by the GPUs' events and checked.
//!
//! ```text
//! every rank   join once -> for each size, out of place and in place:
//!                           call and check -> warm up -> [ barrier -> calls between two events ] x STRETCHES
//! rank 0       the mean of the ranks' times, and its error over the stretches
//! ```
//!
//! A result is compared with inputs that are made again, part by part, up to rounding, because NCCL reduces in an order of its own. With
//! `--algo`, that algorithm runs over NCCL's messages, and results are compared bit for bit.

use super::gpus::{Gpus, system};
use super::inputs::{self, Sample};
use super::nccl_results::{expected_part, far, parts};
use super::ranks::{Data, MeasuredSide, Seen, Timing, combined, fits};
use crate::call::plan::{CallPlan, Choice};
use crate::training::launch_mode::on_threads;
use allfold_base::lock;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::meaning::{On, Portion};
use allfold_collectives::{Collective, Communicator, Error, ReduceOp};
use allfold_cuda::{Memory, Queue, Slice};
use allfold_gpu::nccl::{self, NcclCall, NcclComm};
use allfold_kernels::for_dtype;
use allfold_sim::Picos;
use allfold_sim::hash::splitmix;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The number of groups of consecutive calls that are timed, for the standard error of the mean, and the fewest calls of one: the first
/// calls of a group find an idle device.
const STRETCHES: u32 = 5;
const FEWEST: u32 = 20;

/// The ranks of a measurement.
pub enum GpuRanks {
    /// So many threads of this process, on its GPUs in turn.
    Threads(u32),
    /// This process is one rank, with this number on its host.
    Process(Box<Communicator>, u32),
}

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
    /// How long ranks wait for each other and for their devices.
    pub deadline: Duration,
}

/// A sweep over sizes.
pub struct NcclSweep<'a> {
    /// The GPUs of this process.
    pub gpus: &'a Gpus,
    /// The collective call.
    pub choice: &'a Choice,
    /// The calls, the warm-up and the checks.
    pub timing: Timing,
    /// How calls are issued.
    pub issue: Issue,
    /// The sizes in bytes.
    pub sizes: &'a [u64],
}

/// What a measurement has found so far, on rank 0 or, of processes, on each.
pub enum Found {
    /// The ranks have joined, with this version of NCCL. For each rank its process, its host and its GPU, as nccl-tests lists them.
    Joined((i32, i32, i32), Vec<String>),
    /// The sides of a size, with NCCL's own estimate for the call in microseconds, if there is one.
    Size(u64, Vec<MeasuredSide>, Option<f64>),
}

/// The calls of a stretch, and the number of all calls that are timed.
pub fn calls(timing: Timing) -> (u32, u32) {
    let each = timing.iterations.div_ceil(STRETCHES).max(FEWEST);
    (each, STRETCHES * each)
}

impl NcclSweep<'_> {
    /// Measures all sizes on one communicator, and calls `each` with what is found.
    ///
    /// # Errors
    /// NCCL or the element type is missing, ranks share a GPU or are lost, or `each` fails.
    pub fn run(&self, ranks: GpuRanks, mut each: impl FnMut(Found) -> CommandResult) -> CommandResult {
        self.sizes.iter().try_for_each(|&size| fits(self.choice, size))?;
        if self.choice.algorithm.is_none() && !nccl::has(self.choice.collective) {
            return Err(CommandError::usage(format!(
                "NCCL has no collective for {} here; --algo runs an algorithm over NCCL's messages",
                self.choice.collective
            )));
        }
        let (send, found) = channel();
        std::thread::scope(|scope| {
            let all = scope.spawn(move || for_dtype!(self.choice.dtype, all_ranks(self, ranks, &send)));
            let told = found.iter().try_for_each(&mut each);
            drop(found);
            let ran = all.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            ran.map_err(CommandError::from).and(told)
        })
    }
}

fn all_ranks<T: Sample>(sweep: &NcclSweep<'_>, ranks: GpuRanks, found: &Sender<Found>) -> Result<(), Error> {
    let (exact, devices) = (Mutex::new(None), sweep.gpus.machine.devices().max(1));
    let one = |comm: &Communicator, place: usize| {
        let queue = Queue::new(sweep.gpus.machine.clone(), place % devices).map_err(system)?.pooled();
        RankSweep::<T> { sweep, comm, queue, exact: &exact }.all_sizes(found)
    };
    match ranks {
        GpuRanks::Process(comm, local_rank) => one(&comm, local_rank as usize),
        GpuRanks::Threads(ranks) => {
            let world = on_threads(ranks).map_err(|error| Error::Argument(error.to_string()))?;
            world.run(|comm: Communicator| one(&comm, comm.rank().index())).map(drop)
        }
    }
}

/// The inputs and exact results of a size, which threads of one process share.
type Shared<T> = Mutex<Option<(u64, Arc<Data<T>>)>>;

/// One rank's part of a sweep.
struct RankSweep<'a, T: Sample> {
    sweep: &'a NcclSweep<'a>,
    comm: &'a Communicator,
    queue: Queue,
    exact: &'a Shared<T>,
}

impl<T: Sample> RankSweep<'_, T> {
    fn all_sizes(&self, found: &Sender<Found>) -> Result<(), Error> {
        let NcclSweep { choice, timing, issue, sizes, .. } = *self.sweep;
        let (rank, ranks) = (self.comm.rank(), self.comm.size());
        let control = self.comm.split(Some(0), rank.0)?;
        let control =
            control.ok_or_else(|| Error::System("a rank got no communicator of all ranks".into()))?;
        let mut nccl =
            NcclComm::join(self.queue.clone(), (rank, ranks), Box::new(control), issue.deadline, false)?;
        let tell = |what| {
            // The receiver is gone if what was found could not be printed.
            let _ = (rank.0 == 0 || !self.comm.of_one_process()).then(|| found.send(what));
        };
        tell(Found::Joined(nccl.version()?, self.places()?));
        for &size in sizes {
            let (mut sides, mut estimate) = (Vec::new(), None);
            for &in_place in forms(choice) {
                let call = self.call(size, in_place)?;
                estimate = estimate.or(call.estimate(&mut nccl));
                let seen = match call.measure(&mut nccl) {
                    Ok(seen) => seen.gathered(self.comm)?,
                    Err(error) => {
                        // Kernels that wait for a lost rank use the buffers until the abort has ended.
                        if !nccl.abandon() {
                            std::mem::forget(call);
                        }
                        return Err(nccl::culprit(self.comm, error));
                    }
                };
                sides.push(combined(&averaged(seen, issue.average), timing, in_place));
            }
            tell(Found::Size(size, sides, estimate));
        }
        nccl.finalize()
    }

    /// The process, the host and the GPU of every rank.
    fn places(&self) -> Result<Vec<String>, Error> {
        const LONGEST: usize = 128;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let (process, host, device) = (std::process::id(), host.trim(), self.queue.device());
        let gpu = self.queue.machine().name();
        let text = format!("Pid {process:>6} on {host:>10} device {device:>2} [{device:#04x}] {gpu}");
        let mut own = [b' '; LONGEST];
        own.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
        let mut all = vec![0u8; LONGEST * self.comm.size() as usize];
        self.comm.all_gather(&own, &mut all)?;
        let text = |place: &[u8]| String::from_utf8_lossy(place).trim_end().to_string();
        Ok(all.chunks(LONGEST).map(text).collect())
    }

    fn call(&self, size: u64, in_place: bool) -> Result<RankCall<'_, T>, Error> {
        let NcclSweep { choice, timing, .. } = *self.sweep;
        let plan = choice.at(size).map_err(|error| Error::Argument(error.to_string()))?;
        let exact = match choice.algorithm {
            None => None,
            Some(_) => {
                let mut shared = lock(self.exact);
                let known = shared.take().filter(|(of, _)| *of == size).map(|(_, data)| data);
                let data = match known {
                    Some(data) => data,
                    None => Arc::new(
                        Data::new(choice, &plan, timing).map_err(|error| Error::System(error.to_string()))?,
                    ),
                };
                *shared = Some((size, data.clone()));
                Some(data)
            }
        };
        let whole = plan.geometry.count() as usize;
        let fresh = || self.queue.memory(whole * size_of::<T>()).map_err(system);
        let (input, output) = (fresh()?, fresh()?);
        Ok(RankCall { of: self, plan, exact, input, output, whole, in_place })
    }
}

/// The forms that NCCL has of a collective: out of place, in place.
fn forms(choice: &Choice) -> &'static [bool] {
    use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    match choice.collective {
        _ if choice.algorithm.is_some() => &[true],
        AllGather | AllReduce | Broadcast | Reduce | ReduceScatter => &[false, true],
        _ => &[false],
    }
}

/// The observations with the times that count in place of each rank's own.
fn averaged(mut seen: Vec<Seen>, average: Average) -> Vec<Seen> {
    let stretches = seen.first().map_or(0, |rank| rank.times.len());
    let of = |at: usize| {
        let times = seen.iter().map(|rank| rank.times[at]);
        match average {
            Average::Mean => None,
            Average::First => times.into_iter().next(),
            Average::Least => times.min(),
            Average::Greatest => times.max(),
        }
    };
    let times: Option<Vec<Picos>> = (0..stretches).map(of).collect();
    if let Some(times) = times {
        seen.iter_mut().for_each(|rank| rank.times.clone_from(&times));
    }
    seen
}

/// A call of one size on one rank, with its buffers.
struct RankCall<'a, T: Sample> {
    of: &'a RankSweep<'a, T>,
    plan: CallPlan,
    exact: Option<Arc<Data<T>>>,
    input: Memory,
    output: Memory,
    /// The elements of the whole buffer.
    whole: usize,
    in_place: bool,
}

impl<T: Sample> RankCall<'_, T> {
    /// The rank's input and its result, in their buffers.
    fn slices(&self) -> Result<(Slice<'_>, Slice<'_>), Error> {
        let (rank, block) = (self.of.comm.rank().index(), self.plan.count as usize * size_of::<T>());
        let row = self.of.sweep.choice.collective.meaning();
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
        let Choice { collective, dtype, op, shape, algorithm, .. } = *self.of.sweep.choice;
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
    fn estimate(&self, nccl: &mut NcclComm) -> Option<f64> {
        let native = self.of.sweep.choice.algorithm.is_none();
        native.then(|| nccl.estimate(|nccl| self.issue(nccl)).ok()).flatten().filter(|us| *us >= 0.0)
    }

    /// Writes the rank's input to both buffers.
    fn prepare(&self) -> Result<(), Error> {
        let (rank, seed) = (self.of.comm.rank().0, self.of.sweep.timing.seed);
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

    fn measure(&self, nccl: &mut NcclComm) -> Result<Seen, Error> {
        const WHAT: &str = "finish a collective";
        let NcclSweep { timing, issue: Issue { aggregate, blocking, host_time, .. }, .. } = *self.of.sweep;
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
        (0..timing.warmup).try_for_each(|_| call(nccl))?;
        nccl.wait(WHAT)?;
        let (from, to) = (queue.record().map_err(system)?, queue.record().map_err(system)?);
        let ((each, _), mut times) = (calls(timing), Vec::new());
        for _ in 0..STRETCHES {
            self.of.comm.barrier()?;
            #[allow(clippy::disallowed_methods, reason = "the host's time for issuing calls is measured")]
            let begun = Instant::now();
            from.move_to(queue).map_err(system)?;
            (0..each).try_for_each(|_| call(nccl))?;
            to.move_to(queue).map_err(system)?;
            let issued = begun.elapsed().as_nanos() as u64;
            nccl.wait(WHAT)?;
            let nanoseconds = if host_time { issued } else { from.until(&to).map_err(system)? };
            times.push(Picos(1000 * nanoseconds / u64::from(each * aggregate.max(1))));
        }
        Ok(Seen { times, checked })
    }

    /// The number of wrong elements of the rank's result, the first of them, and the result's hash.
    fn check(&self) -> Result<(u64, Option<usize>, u64), Error> {
        let (choice, rank) = (self.of.sweep.choice, self.of.comm.rank());
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
                None => far(
                    &got,
                    &expected_part(choice, self.of.sweep.timing.seed, (count, rank), &places),
                    choice,
                ),
            };
            (wrong, hash) = (wrong + bad, inputs::hash_on(hash, &got));
            at = at.or(place.map(|place| places.start + place));
        }
        Ok((wrong, at, hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_has_at_least_twenty_calls_and_all_of_them_at_least_those_asked_for() {
        let timing = |iterations| Timing {
            iterations,
            warmup: 0,
            check: true,
            seed: 0,
            virtual_time: false,
            registered: false,
        };
        assert_eq!(
            [1, 20, 2000, 2001].map(|n| calls(timing(n))),
            [(20, 100), (20, 100), (400, 2000), (401, 2005)]
        );
    }
}
