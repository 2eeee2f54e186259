//! Collectives over ranks that are buffers on one or several GPUs of one process, driven by one thread.
//!
//! ```text
//! DeviceCollective { algorithm, dtype, op, mode }  +  a buffer per rank
//!     messages   every step of the schedule: peer copies and reductions, a stream per rank, ordered by events
//!     fused      one kernel that evaluates each chunk's tree over all buffers
//!       |  captured once as a graph: the key is the job, the count and the addresses
//!       v
//!     one launch per collective
//! ```
//!
//! Both forms run every algorithm of the table that they can express, with the bits that the algorithm's trees determine. A machine is a
//! GPU machine, or the CPU shim of `allfold_cuda`, on which tests run without a GPU.

mod across;
mod fused;
mod group;
mod host;
mod job;
mod messages;
mod over_nccl;
mod point_to_point;
mod reach;
mod rooted;
mod shared;

pub use group::{DeviceGroup, Grouped, ReducePath};
pub use job::{DeviceCollective, ExecutionMode};
pub use point_to_point::DeviceMessages;

use crate::check::on_first_use;
use crate::driver::failed;
use crate::registry::Shape;
use crate::schedule::{Schedule, Segments};
use crate::{Collective, DType, Error, Geometry, Rank, ReduceOp, Result};
use allfold_cuda::{CudaGraph, CudaMachine, Mark, Memory, Queue, Slice, launch};
use reach::{MOST_RANKS, reachable};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The key of a captured collective: job (collective, algorithm, root, type, operator, form, segments), bytes of a buffer,
/// addresses.
type Key = (Collective, &'static str, Rank, DType, ReduceOp, ExecutionMode, u32, usize, Vec<u64>);

/// A captured collective, with the memory that its graph uses.
struct Captured {
    graph: CudaGraph,
    /// Scratch copies and tables that the graph refers to.
    _own: Vec<Memory>,
    _tables: Option<launch::Uploaded>,
}

/// The ranks of one process: one stream each, spread over the devices in order.
pub struct DeviceRanks {
    machine: Arc<dyn CudaMachine>,
    /// The stream on which graphs are captured and launched.
    main: Queue,
    queues: Vec<Queue>,
    captured: BTreeMap<Key, Captured>,
    /// The events before and after the last collective.
    marks: (Mark, Mark),
}

impl DeviceRanks {
    /// Makes `ranks` ranks on a machine. Rank r uses device r modulo the number of devices.
    ///
    /// # Errors
    /// No ranks, more than 64 ranks, devices that cannot access each other's memory, or a call that the driver refused.
    pub fn new(machine: Arc<dyn CudaMachine>, ranks: u32) -> Result<DeviceRanks> {
        if !(1..=MOST_RANKS).contains(&ranks) {
            return Err(Error::Argument(format!(
                "{ranks} ranks cannot share one process; 1 to {MOST_RANKS} can"
            )));
        }
        let queue = |device: usize| Queue::new(machine.clone(), device).map_err(failed);
        let main = queue(0)?;
        let devices = machine.devices();
        reachable(&*machine, 0..devices.min(ranks as usize))?;
        let queues = (0..ranks as usize).map(|rank| queue(rank % devices)).collect::<Result<Vec<_>>>()?;
        let marks = (main.record().map_err(failed)?, main.record().map_err(failed)?);
        Ok(DeviceRanks { machine, main, queues, captured: BTreeMap::new(), marks })
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.queues.len() as u32
    }

    /// A rank's own stream, on its device.
    ///
    /// # Errors
    /// A rank that does not exist.
    pub fn queue(&self, rank: Rank) -> Result<&Queue> {
        self.queues.get(rank.index()).ok_or_else(|| {
            Error::Argument(format!("rank {rank} is outside the group, which has {} ranks", self.ranks()))
        })
    }

    /// The stream on which collectives are launched; work queued here runs in order with them.
    pub fn main(&self) -> &Queue {
        &self.main
    }

    /// The number of captured collectives.
    pub fn graphs(&self) -> usize {
        self.captured.len()
    }

    /// Runs a collective in place over one buffer per rank, and waits for it. Returns the nanoseconds from the event before it to the
    /// event after it; 0 on the shim. A job over given buffers is captured at its first run, and is a single graph launch from then on.
    ///
    /// A buffer is the whole data of its rank in the layout of [`crate::Geometry`]: for a blocked collective, one block for every
    /// rank.
    ///
    /// # Errors
    /// Buffers that differ in length or are not on their rank's device; a collective that the fused form cannot express; a call
    /// that the driver refused.
    pub fn run(&mut self, job: &DeviceCollective, buffers: &[Slice<'_>]) -> Result<u64> {
        let count = self.check(job, buffers)?;
        let addresses: Vec<u64> = buffers.iter().map(Slice::address).collect();
        let DeviceCollective { algorithm, root, dtype, op, mode, segments } = *job;
        let bytes = buffers.first().map_or(0, Slice::len);
        let key = (algorithm.collective, algorithm.name, root, dtype, op, mode, segments, bytes, addresses);
        if !self.captured.contains_key(&key) {
            let captured = self.capture(job, count, buffers)?;
            self.captured.insert(key.clone(), captured);
        }
        let Some(captured) = self.captured.get(&key) else {
            return Err(Error::System("the captured collective does not exist any more".into()));
        };
        // Work that was queued on a rank's own stream, such as the copy of the rank's data, comes first.
        for queue in &self.queues {
            if !self.machine.idle(queue.stream()).map_err(failed)? {
                self.main.wait(&queue.mark().map_err(failed)?).map_err(failed)?;
            }
        }
        let (from, to) = &self.marks;
        from.move_to(&self.main).map_err(failed)?;
        #[allow(unsafe_code, reason = "graphs name memory by address")]
        // SAFETY: the key holds the addresses and lengths, and the buffers at them are borrowed for this call; the other memory is owned
        // by the capture.
        unsafe { self.machine.replay(self.main.stream(), captured.graph) }.map_err(failed)?;
        to.move_to(&self.main).map_err(failed)?;
        self.main.finish().map_err(failed)?;
        from.until(to).map_err(failed)
    }

    /// The number of elements of a buffer, after a check of all buffers.
    fn check(&self, job: &DeviceCollective, buffers: &[Slice<'_>]) -> Result<u64> {
        if buffers.len() != self.queues.len() {
            return Err(Error::Argument(format!(
                "{} buffers were passed for {} ranks; pass one for each rank",
                buffers.len(),
                self.queues.len()
            )));
        }
        if job.segments == 0 {
            return Err(Error::Argument("`segments` is 0; chunks are cut into 1 segment or more".into()));
        }
        let count =
            buffers.first().map_or(Ok(0), |buffer| buffer.elements(job.dtype.size())).map_err(failed)?;
        for (rank, (buffer, queue)) in buffers.iter().zip(&self.queues).enumerate() {
            if buffer.elements(job.dtype.size()).map_err(failed)? != count
                || buffer.device() != queue.device()
            {
                let (device, want) = (buffer.device(), queue.device());
                let what = format!("{} bytes on device {device}", buffer.len());
                let want = format!("{count} x {} on device {want}", job.dtype);
                return Err(Error::Argument(format!("rank {rank}'s buffer is {what}, not {want}")));
            }
        }
        let ranks = u64::from(self.ranks());
        if job.algorithm.collective.blocked() && !count.is_multiple_of(ranks) {
            return Err(Error::Argument(format!("{count} elements cannot be cut into {ranks} equal blocks")));
        }
        Ok(count)
    }

    fn schedule(&self, job: &DeviceCollective) -> Result<Arc<dyn Schedule>> {
        let shape = Shape::new(self.ranks())?.rooted(job.root)?;
        let plain = job.algorithm.build(shape)?;
        on_first_use(job.algorithm, shape, &*plain)?;
        Ok(if job.segments > 1 { Arc::new(Segments::new(plain, job.segments)) } else { plain })
    }

    fn capture(&self, job: &DeviceCollective, count: u64, buffers: &[Slice<'_>]) -> Result<Captured> {
        let schedule = self.schedule(job)?;
        let geometry = match job.algorithm.collective.blocked() {
            true => Geometry::blocked(&*schedule, count / u64::from(self.ranks())),
            false => Geometry::whole(&*schedule, count),
        };
        match job.mode {
            ExecutionMode::Fused => {
                let tables = fused::tables(job, &*schedule, &geometry)?;
                let tables = tables.upload(&self.main, buffers.len()).map_err(failed)?;
                self.main.finish().map_err(failed)?;
                let graph = self.captured(|| fused::run(&self.main, job, &tables, buffers))?;
                Ok(Captured { graph, _own: Vec::new(), _tables: Some(tables) })
            }
            ExecutionMode::Messages => {
                let own = messages::ScratchCopies::new(&*schedule, &geometry, job.dtype, &self.queues)?;
                // Kernels are compiled and loaded at their first launch, which a capture does not allow.
                messages::warm(job, &self.queues)?;
                let run = || messages::Run {
                    job,
                    schedule: &*schedule,
                    geometry: &geometry,
                    scratch_copies: &own,
                    buffers,
                };
                let graph = self.captured(|| self.forked(|| run().all(&self.queues)))?;
                Ok(Captured { graph, _own: own.into_memory(), _tables: None })
            }
        }
    }

    /// Captures the work that `body` queues on the main stream, and on streams forked from it, as a graph.
    fn captured(&self, body: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
        self.machine.begin_capture(self.main.stream()).map_err(failed)?;
        let queued = body();
        // The capture is ended even if the body failed; the stream would stay in capture mode otherwise.
        let graph = self.machine.end_capture(self.main.stream()).map_err(failed);
        match (queued, graph) {
            (Ok(()), Ok(graph)) => Ok(graph),
            (Ok(()), Err(error)) | (Err(error), Err(_)) => Err(error),
            (Err(error), Ok(graph)) => {
                self.machine.forget(graph);
                Err(error)
            }
        }
    }

    /// Makes the ranks' streams wait for the main stream before `body`, and the main stream wait for them after it.
    fn forked(&self, body: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = self.main.record().map_err(failed)?;
        self.queues.iter().try_for_each(|queue| queue.wait(&start)).map_err(failed)?;
        body()?;
        for queue in &self.queues {
            let end = queue.record().map_err(failed)?;
            self.main.wait(&end).map_err(failed)?;
        }
        Ok(())
    }
}

impl Drop for DeviceRanks {
    fn drop(&mut self) {
        self.captured.values().for_each(|captured| self.machine.forget(captured.graph));
    }
}

#[cfg(test)]
mod tests;
