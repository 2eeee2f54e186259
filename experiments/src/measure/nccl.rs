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
use super::inputs::Sample;
pub use super::nccl_call::{Average, Issue, calls};
use super::nccl_call::{MeasuredRank, RankCall};
use super::near_gpu;
use super::ranks::{Data, MeasuredSide, Seen, Timing, combined, fits};
use crate::call::plan::Choice;
use crate::training::launch_mode::on_threads;
use allfold_base::lock;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::{Collective, Communicator, Error};
use allfold_cuda::Queue;
use allfold_gpu::nccl::{self, NcclComm};
use allfold_kernels::for_dtype;
use allfold_sim::Picos;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// The ranks of a measurement.
pub enum GpuRanks {
    /// So many threads of this process, on its GPUs in turn.
    Threads(u32),
    /// This process is one rank, with this number on its host.
    Process(Box<Communicator>, u32),
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
        let NcclSweep { choice, timing, issue, .. } = *sweep;
        let place = MeasuredRank { choice, timing, issue, comm, queue };
        RankSweep::<T> { sizes: sweep.sizes, place, exact: &exact }.all_sizes(found)
    };
    match ranks {
        GpuRanks::Process(comm, local_rank) => {
            let device = local_rank as usize % devices;
            near_gpu::bind_rank(&*sweep.gpus.machine, device, comm.rank());
            one(&comm, device)
        }
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
    sizes: &'a [u64],
    place: MeasuredRank<'a>,
    exact: &'a Shared<T>,
}

impl<T: Sample> RankSweep<'_, T> {
    fn all_sizes(&self, found: &Sender<Found>) -> Result<(), Error> {
        let MeasuredRank { choice, timing, issue, comm, ref queue } = self.place;
        let (rank, ranks) = (comm.rank(), comm.size());
        let control = comm.split(Some(0), rank.0)?;
        let control =
            control.ok_or_else(|| Error::System("a rank got no communicator of all ranks".into()))?;
        let mut nccl =
            NcclComm::join(queue.clone(), (rank, ranks), Box::new(control), issue.deadline, false)?;
        let tell = |what| {
            // The receiver is gone if what was found could not be printed.
            let _ = (rank.0 == 0 || !comm.of_one_process()).then(|| found.send(what));
        };
        tell(Found::Joined(nccl.version()?, self.places()?));
        for &size in self.sizes {
            let (mut sides, mut estimate) = (Vec::new(), None);
            for &in_place in forms(choice) {
                let call = self.call(size, in_place, &mut nccl)?;
                estimate = estimate.or(call.estimate(&mut nccl));
                let seen = match call.measure(&mut nccl) {
                    Ok(seen) => seen.gathered(comm)?,
                    Err(error) => {
                        // Kernels that wait for a lost rank use the buffers until the abort has ended.
                        if !nccl.abandon() {
                            std::mem::forget(call);
                        }
                        return Err(nccl::culprit(comm, error));
                    }
                };
                call.free(&mut nccl)?;
                sides.push(combined(&averaged(seen, issue.average), timing, in_place));
            }
            tell(Found::Size(size, sides, estimate));
        }
        nccl.finalize()
    }

    /// The process, the host and the GPU of every rank.
    fn places(&self) -> Result<Vec<String>, Error> {
        const LONGEST: usize = 128;
        let MeasuredRank { comm, ref queue, .. } = self.place;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let (process, host, device) = (std::process::id(), host.trim(), queue.device());
        let gpu = queue.machine().name();
        let text = format!("Pid {process:>6} on {host:>10} device {device:>2} [{device:#04x}] {gpu}");
        let mut own = [b' '; LONGEST];
        own.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
        let mut all = vec![0u8; LONGEST * comm.size() as usize];
        comm.all_gather(&own, &mut all)?;
        let text = |place: &[u8]| String::from_utf8_lossy(place).trim_end().to_string();
        Ok(all.chunks(LONGEST).map(text).collect())
    }

    fn call(&self, size: u64, in_place: bool, nccl: &mut NcclComm) -> Result<RankCall<'_, T>, Error> {
        let MeasuredRank { choice, timing, issue, .. } = self.place;
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
        let mut fresh = || nccl.buffer(whole * size_of::<T>(), issue.registration);
        let (input, output) = (fresh()?, fresh()?);
        Ok(RankCall { of: &self.place, plan, exact, input, output, whole, in_place })
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
