//! Collectives on the GPUs of this process, timed by the devices' own events, and checked bit for bit: one thread drives every rank's
//! buffers, and a collective is one graph.

use crate::call::plan::Choice;
use crate::measure::inputs::Sample;
use crate::measure::ranks::{Data, MeasuredSide, Seen, Timing, combined, fits};
use crate::measure::statistics::mean_and_error;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_collectives::meaning::{On, Portion};
use allfold_collectives::{Error, Rank};
use allfold_cuda::{CudaMachine, Gpu, Memory, Queue};
use allfold_gpu::device::{DeviceCollective, DeviceRanks, ExecutionMode};
use allfold_kernels::for_dtype;
use std::sync::Arc;

/// The GPUs of this machine, or the tests' shim in place of them.
pub struct Gpus {
    pub(super) machine: Arc<dyn CudaMachine>,
}

pub(super) fn system(error: allfold_cuda::Error) -> Error {
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
    ) -> CommandResult<MeasuredSide> {
        for_dtype!(choice.dtype, on_device(self, choice, mode, timing, size))
    }
}

fn on_device<T: Sample>(
    gpus: &Gpus,
    choice: &Choice,
    mode: ExecutionMode,
    timing: Timing,
    size: u64,
) -> CommandResult<MeasuredSide> {
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
                times.push(ran as f64 / 1e3);
            }
        }
        Ok((ends, times))
    };
    let (ends, times) = run().map_err(CommandError::from)?;
    let (time_us, error_us) = mean_and_error(&times);
    let output = choice.collective.meaning().output;
    let seen = (0..).map(Rank).zip(&ends).map(|(rank, end)| {
        // A buffer holds the data of all ranks, of which a block may be this rank's.
        let block = output.part == Portion::Block && end.len() > data.count;
        let end = if block { &end[data.block(rank)] } else { &end[..] };
        let gets = output.on == On::All || rank == root;
        let checked = if gets { data.checked(choice, rank, end) } else { None };
        Seen { checked, ..Seen::default() }
    });
    let side = combined(&seen.collect::<Vec<_>>(), timing, true);
    Ok(MeasuredSide { time_us, error_us, ..side })
}
