//! Collectives on the GPUs of this process, timed by the devices' own events, and checked.
//!
//! ```text
//! device   one thread drives every rank's buffers; a collective is one graph; checked bit for bit
//! nccl     a thread per rank; NCCL's own collectives, checked up to rounding, with NCCL's own estimate of the time;
//!          with `--algo`, that algorithm over NCCL's messages, checked bit for bit
//! ```

use crate::call::plan::{CallPlan, Choice};
use crate::measure::inputs::{self, Sample};
use crate::measure::ranks::{Data, MeasuredSide, Timing, fits};
use crate::measure::statistics::mean_and_error;
use crate::training::launch_mode::on_threads;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::meaning::Portion;
use allfold_collectives::{Collective, Communicator, DType, Error, Rank};
use allfold_cuda::{CudaMachine, Gpu, Memory, Queue};
use allfold_gpu::device::{DeviceCollective, DeviceRanks, ExecutionMode};
use allfold_gpu::nccl::{self, NcclComm};
use allfold_kernels::{bf16, f16, for_dtype};
use std::sync::Arc;
use std::time::Duration;

/// How long ranks wait for NCCL.
const DEADLINE: Duration = Duration::from_secs(60);
/// The number of groups of consecutive calls that are timed, for the standard error of the mean.
const STRETCHES: u32 = 5;

/// The GPUs of this machine, or the tests' shim in place of them.
pub struct Gpus {
    machine: Arc<dyn CudaMachine>,
}

/// The measurement of one size, with NCCL's own estimate if NCCL gave one.
pub struct Timed {
    /// The time and the checks of the results.
    pub side: MeasuredSide,
    /// The estimate of `ncclGroupSimulateEnd`, in microseconds.
    pub nccl_estimate_us: Option<f64>,
}

fn system(error: allfold_cuda::Error) -> Error {
    Error::System(error.to_string())
}

impl Gpus {
    /// Opens the GPUs of this machine.
    ///
    /// # Errors
    /// A GPU or a library is missing; the error says how to get it.
    pub fn open() -> CommandResult<Gpus> {
        Gpu::open().map(Gpus::over).map_err(CommandError::from)
    }

    /// The GPUs of a given machine.
    pub fn over(machine: Arc<dyn CudaMachine>) -> Gpus {
        Gpus { machine }
    }

    /// The number of GPUs and the name of one, as text: `2 x NAME`.
    pub fn name(&self) -> String {
        format!("{} x {}", self.machine.devices(), self.machine.name())
    }

    /// The name of one of the GPUs.
    pub fn device_name(&self) -> String {
        self.machine.name()
    }

    /// GB/s of a copy on one device of `bytes`, read and written; 0 on a machine without a clock.
    ///
    /// # Errors
    /// The driver refuses a call.
    pub fn copy_gbps(&self, bytes: u64) -> CommandResult<f64> {
        let copy = || {
            let queue = Queue::new(self.machine.clone(), 0)?;
            let (a, b) = (queue.memory(bytes as usize)?, queue.memory(bytes as usize)?);
            queue.fill(a.all(), 1)?;
            queue.copy(b.all(), a.all())?;
            let from = queue.record()?;
            (0..20).try_for_each(|_| queue.copy(b.all(), a.all()))?;
            let to = queue.record()?;
            from.until(&to)
        };
        let nanoseconds = copy().map_err(CommandError::run)?;
        Ok(if nanoseconds == 0 { 0.0 } else { 40.0 * bytes as f64 / nanoseconds as f64 })
    }

    /// Measures one size with the device backend, in place: ranks are buffers, spread over the devices.
    ///
    /// # Errors
    /// Not enough memory, a collective that the backend does not have, or a call that the driver refuses.
    pub fn device(
        &self,
        choice: &Choice,
        mode: ExecutionMode,
        timing: Timing,
        size: u64,
    ) -> CommandResult<Timed> {
        for_dtype!(choice.dtype, on_device(self, choice, mode, timing, size))
    }

    /// Measures one size by NCCL: its own collective, or the chosen algorithm over NCCL's messages.
    ///
    /// # Errors
    /// NCCL is missing or lacks the element type, or the run fails.
    pub fn nccl(&self, choice: &Choice, timing: Timing, size: u64) -> CommandResult<Timed> {
        for_dtype!(choice.dtype, over_nccl(self, choice, timing, size))
    }
}

/// Compares the ranks' results with the expected ones. Returns the number of wrong elements, the first one's place, and a checksum.
fn checked<T: Sample>(
    choice: &Choice,
    data: &Data<T>,
    ends: &[Vec<T>],
    exact: bool,
) -> (Option<u64>, Option<String>, Option<String>) {
    let Some(expected) = &data.expected else { return (None, None, None) };
    let (mut wrong, mut first) = (0, None);
    let only_root = matches!(choice.collective, Collective::Reduce | Collective::Gather);
    let mut hashes = Vec::new();
    for (rank, (end, whole)) in ends.iter().zip(expected).enumerate() {
        let rank = Rank(rank as u32);
        if only_root && rank != choice.shape.root() {
            continue;
        }
        let block = data.block(rank);
        let (end, want) = match choice.collective {
            Collective::ReduceScatter | Collective::Scatter if end.len() == whole.len() => {
                (&end[block.clone()], &whole[block])
            }
            Collective::ReduceScatter | Collective::Scatter => (&end[..], &whole[block]),
            _ => (&end[..], &whole[..]),
        };
        let (bad, at) =
            if exact { inputs::differing(end, want) } else { far(end, want, choice.shape.ranks()) };
        wrong += bad;
        first = first.or(at.map(|at| format!("rank {rank}, element {at}")));
        hashes.push(inputs::hash(end));
    }
    (Some(wrong), first, Some(inputs::join(hashes)))
}

/// Elements that differ by more than one rounding per rank. Integers do not round.
fn far<T: Sample>(got: &[T], want: &[T], ranks: u32) -> (u64, Option<usize>) {
    let step = match T::DTYPE {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => 2f64.powi(-10),
        DType::Bf16 => 2f64.powi(-7),
        _ => return inputs::differing(got, want),
    };
    let bad = |at: &usize| {
        let (got, want) = (number(&got[*at]), number(&want[*at]));
        (got - want).abs() > f64::from(ranks) * step * want.abs() || got.is_nan() != want.is_nan()
    };
    let mut places = (0..got.len().min(want.len())).filter(bad);
    let first = places.next();
    let missing = got.len().abs_diff(want.len()) as u64;
    (u64::from(first.is_some()) + places.count() as u64 + missing, first)
}

fn number<T: Sample>(value: &T) -> f64 {
    let bytes = bytemuck::bytes_of(value);
    match T::DTYPE {
        DType::F64 => bytemuck::pod_read_unaligned::<f64>(bytes),
        DType::F32 => f64::from(bytemuck::pod_read_unaligned::<f32>(bytes)),
        DType::F16 => bytemuck::pod_read_unaligned::<f16>(bytes).to_f64(),
        DType::Bf16 => bytemuck::pod_read_unaligned::<bf16>(bytes).to_f64(),
        _ => f64::NAN,
    }
}

fn on_device<T: Sample>(
    gpus: &Gpus,
    choice: &Choice,
    mode: ExecutionMode,
    timing: Timing,
    size: u64,
) -> CommandResult<Timed> {
    fits(choice, size)?;
    let plan = choice.at(size)?;
    let data = Data::<T>::new(choice, &plan, timing)?;
    let root = choice.shape.root();
    let (algorithm, dtype, op) = (plan.algorithm, choice.dtype, choice.op);
    let job = DeviceCollective { algorithm, root, dtype, op, mode, segments: plan.schedule.segments() };
    let run = || -> Result<(Vec<Vec<T>>, Vec<f64>), Error> {
        let mut group = DeviceRanks::new(gpus.machine.clone(), choice.shape.ranks())?;
        let mut memories: Vec<Memory> = Vec::new();
        for (rank, input) in data.inputs.iter().enumerate() {
            memories.push(group.queue(Rank(rank as u32))?.upload(input).map_err(system)?);
        }
        let slices: Vec<_> = memories.iter().map(Memory::all).collect();
        group.run(&job, &slices)?;
        let read = |memory: &Memory| group.main().download(memory.all()).map_err(system);
        let ends = memories.iter().map(read).collect::<Result<Vec<Vec<T>>, Error>>()?;
        let mut times = Vec::new();
        for call in 0..timing.warmup + timing.iterations {
            let ran = group.run(&job, &slices)?;
            if call >= timing.warmup {
                times.push(ran.nanoseconds as f64 / 1e3);
            }
        }
        Ok((ends, times))
    };
    let (ends, times) = run().map_err(CommandError::from)?;
    let (time_us, error_us) = mean_and_error(&times);
    let (wrong, first_wrong, checksum) = checked(choice, &data, &ends, true);
    let side = MeasuredSide { in_place: true, time_us, error_us, wrong, first_wrong, checksum };
    Ok(Timed { side, nccl_estimate_us: None })
}

/// The observations of one rank: its final buffer, the times of its calls in microseconds, and NCCL's estimate.
type Seen<T> = (Vec<T>, Vec<f64>, Option<f64>);

fn over_nccl<T: Sample>(gpus: &Gpus, choice: &Choice, timing: Timing, size: u64) -> CommandResult<Timed> {
    fits(choice, size)?;
    let plan = choice.at(size)?;
    let data = Data::<T>::new(choice, &plan, timing)?;
    let world = on_threads(choice.shape.ranks())?;
    let seen = world.run(|control: Communicator| nccl_rank(gpus, choice, &plan, &data, timing, control));
    let seen: Vec<Seen<T>> = seen.map_err(CommandError::from)?;
    let stretches = seen.first().map_or(0, |(_, times, _)| times.len());
    let mean = |at: usize| seen.iter().map(|(_, times, _)| times[at]).sum::<f64>() / seen.len() as f64;
    let (time_us, error_us) = mean_and_error(&(0..stretches).map(mean).collect::<Vec<_>>());
    let nccl_estimate_us = seen.first().and_then(|(.., estimate)| *estimate);
    let ends: Vec<Vec<T>> = seen.into_iter().map(|(end, ..)| end).collect();
    // NCCL's own collective sums in an order of its own, so its results are compared up to rounding.
    let exact = choice.algorithm.is_some() || !choice.collective.reduces();
    let (wrong, first_wrong, checksum) = checked(choice, &data, &ends, exact);
    let side = MeasuredSide { in_place: in_place(choice), time_us, error_us, wrong, first_wrong, checksum };
    Ok(Timed { side, nccl_estimate_us })
}

/// Whether the input's buffer takes the result.
fn in_place(choice: &Choice) -> bool {
    let both =
        matches!(choice.collective, Collective::AllReduce | Collective::Broadcast | Collective::Reduce);
    both || choice.algorithm.is_some()
}

fn nccl_rank<T: Sample>(
    gpus: &Gpus,
    choice: &Choice,
    plan: &CallPlan,
    data: &Data<T>,
    timing: Timing,
    control: Communicator,
) -> Result<Seen<T>, Error> {
    let (rank, ranks) = (control.rank(), control.size());
    let queue = Queue::new(gpus.machine.clone(), rank.index() % gpus.machine.devices().max(1))
        .map_err(system)?
        .pooled();
    let mut comm = NcclComm::join(queue.clone(), (rank, ranks), Box::new(control), DEADLINE, false)?;
    let whole = &data.inputs[rank.index()];
    let (input, output) = (queue.upload(whole).map_err(system)?, queue.upload(whole).map_err(system)?);
    let block = data.count * size_of::<T>();
    let (root, dtype, op) = (choice.shape.root(), choice.dtype, choice.op);
    let of = |memory: &'_ Memory| -> Result<(), Error> { queue.write(memory.all(), whole).map_err(system) };
    let call = |comm: &mut NcclComm| -> Result<(), Error> {
        let (all, out) = (input.all(), output.all());
        let own = all.part(rank.index() * block, block).map_err(system);
        let first = out.part(0, block).map_err(system);
        if choice.algorithm.is_some() {
            let divide = choice.collective.reduces() && op == allfold_collectives::ReduceOp::Avg;
            return nccl::run_scheduled(
                comm,
                rank,
                &*plan.schedule,
                &plan.geometry,
                (dtype, op),
                divide,
                out,
            );
        }
        if !nccl::has(choice.collective) {
            let what = format!(
                "NCCL has no collective for {} here; --algo runs an algorithm over NCCL's messages",
                choice.collective
            );
            return Err(Error::Argument(what));
        }
        let row = choice.collective.meaning();
        let input = match row.input.part {
            _ if choice.collective.in_place() => out,
            Portion::Block => own?,
            _ => all,
        };
        let output = if row.output.part == Portion::Block { first? } else { out };
        comm.collective(nccl::NcclCall { collective: choice.collective, dtype, op, root, input, output })
    };
    // NCCL can estimate single collectives only: a scheduled collective contains groups of its own.
    let estimate =
        if choice.algorithm.is_none() { comm.estimate(call).ok().filter(|us| *us >= 0.0) } else { None };
    of(&output)?;
    call(&mut comm)?;
    comm.wait("finish a collective")?;
    let mut end: Vec<T> = queue.download(output.all()).map_err(system)?;
    if choice.algorithm.is_none() && choice.collective.meaning().output.part == Portion::Block {
        end.truncate(data.count);
    }
    let stretches = STRETCHES.min(timing.iterations).max(1);
    let calls = timing.iterations.div_ceil(stretches);
    (0..timing.warmup).try_for_each(|_| call(&mut comm))?;
    let (from, to) = (queue.record().map_err(system)?, queue.record().map_err(system)?);
    let mut times = Vec::new();
    for _ in 0..stretches {
        from.move_to(&queue).map_err(system)?;
        (0..calls).try_for_each(|_| call(&mut comm))?;
        to.move_to(&queue).map_err(system)?;
        comm.wait("finish a collective")?;
        let nanoseconds = from.until(&to).map_err(system)?;
        times.push(nanoseconds as f64 / f64::from(calls) / 1e3);
    }
    comm.finalize()?;
    Ok((end, times, estimate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_in_another_order_is_near_and_a_wrong_one_is_not() {
        let (a, b) = ([1.0f32, 2.0], [1.0 + 2.0 * f32::EPSILON, 2.0]);
        assert_eq!(far(&a, &b, 4), (0, None));
        assert_eq!(far(&a, &[1.1, 2.0], 4), (1, Some(0)));
        assert_eq!(far(&[1i32, 2], &[1, 3], 4), (1, Some(1)));
        assert_eq!(far(&[f32::NAN], &[1.0], 4), (1, Some(0)));
    }
}
