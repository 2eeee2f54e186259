//! The messages between servers and workers, on devices.
//!
//! A rank sends copies and frees them when the other rank has answered: a server's copy of parameters when the worker's gradients have
//! arrived, a worker's copy of gradients when the server's next parameters have arrived. Graphs contain no such exchange.

use super::spans::part;
use super::unit::UnitMemory;
use super::weights::here;
use super::worker::GpuWorker;
use crate::engine::{RankEngine, Serving, first_of, nth};
use crate::{Error, Result};
use allfold_collectives::Rank;
use allfold_cuda::{Memory, Queue, Slice, launch};
use allfold_gpu::device::DeviceMessages;
use allfold_kernels::DType;
use std::sync::Arc;

/// The messages of parameters, and those of gradients, between a worker and all servers.
fn messages<'w, 'a>(
    serving: &'w mut [[DeviceMessages<'a>; 2]],
    worker: usize,
) -> Result<&'w mut [DeviceMessages<'a>; 2]> {
    let missing = || Error::Strategy(format!("there are no messages of worker {worker}"));
    serving.get_mut(worker).ok_or_else(missing)
}

fn copy_of(queue: &Queue, values: Slice<'_>) -> Result<Arc<Memory>> {
    let copy = queue.memory(values.len())?;
    queue.copy(copy.all(), values)?;
    Ok(Arc::new(copy))
}

/// A server's part of a unit's parameters.
fn served(unit: &UnitMemory) -> Result<Slice<'_>> {
    Ok(here(&unit.param_part)?.all())
}

impl Serving for GpuWorker<'_> {
    fn pull(&mut self, _unit: usize) -> Result<()> {
        self.serving.is_unanswered = true;
        Ok(())
    }

    fn pulled(&mut self, unit: usize) -> Result<()> {
        let GpuWorker { queue, weights, groups, serving, .. } = self;
        let (servers, narrow) = (groups.servers, weights.narrow);
        let [params, gradients] = messages(&mut groups.serving, 0)?;
        let unit = &mut weights.units[unit];
        for (server, range) in unit.parts(servers).into_iter().enumerate() {
            let into = part(here(&unit.params)?.all(), &range, 4)?;
            params.receive(queue, into, Rank(server as u32))?;
        }
        unit.narrow_params(queue, narrow)?;
        // The servers have taken the gradients of the last step before they sent the first parameters of this one.
        if std::mem::take(&mut serving.is_unanswered) {
            gradients.flush(queue)?;
        }
        Ok(())
    }

    fn push(&mut self, unit: usize) -> Result<()> {
        let workers = self.place.mesh.data as u32;
        let GpuWorker { queue, weights, groups, .. } = self;
        let servers = groups.servers;
        let [_, gradients] = messages(&mut groups.serving, 0)?;
        let unit = &weights.units[unit];
        let grads = here(&unit.grads)?.all();
        launch::divide(queue, DType::F32, grads, workers)?;
        for (server, range) in unit.parts(servers).into_iter().enumerate() {
            gradients.send(queue, copy_of(queue, part(grads, &range, 4)?)?, Rank(server as u32))?;
        }
        Ok(())
    }

    fn serve(&mut self, unit: usize, worker: usize) -> Result<()> {
        let GpuWorker { queue, weights, groups, .. } = self;
        let to = Rank(groups.servers as u32);
        let [params, _] = messages(&mut groups.serving, worker)?;
        Ok(params.send(queue, copy_of(queue, served(&weights.units[unit])?)?, to)?)
    }

    fn expect(&mut self, units: &[usize], worker: usize) -> Result<()> {
        let GpuWorker { queue, weights, groups, serving, .. } = self;
        let from = Rank(groups.servers as u32);
        let [_, gradients] = messages(&mut groups.serving, worker)?;
        for &unit in units {
            let memory = queue.memory(served(&weights.units[unit])?.len())?;
            gradients.expect(queue, Arc::new(memory), from)?;
        }
        nth(&mut serving.expected, worker).extend_from_slice(units);
        Ok(())
    }

    fn first_pushed(&mut self, workers: &[usize]) -> Result<usize> {
        first_of(workers, |worker| {
            let [_, gradients] = messages(&mut self.groups.serving, worker)?;
            Ok(gradients.have_come()?)
        })
    }

    fn take_push(&mut self, worker: usize) -> Result<()> {
        let GpuWorker { queue, weights, groups, serving, .. } = self;
        let [params, gradients] = messages(&mut groups.serving, worker)?;
        let units = std::mem::take(nth(&mut serving.expected, worker));
        for (unit, came) in units.into_iter().zip(gradients.take(queue)?) {
            let unit = &mut weights.units[unit];
            let sum = here(&unit.grad_part)?.all();
            match std::mem::replace(&mut unit.part_begun, true) {
                true => {
                    launch::add(queue, DType::F32, (sum, came.all()), sum)?;
                }
                false => queue.copy(sum, came.all())?,
            }
        }
        // The worker has received the parameters that were sent to it, since it has computed with them.
        Ok(params.flush(queue)?)
    }

    fn apply_pushes(&mut self) -> Result<()> {
        self.update()?;
        if self.config.parallel.staleness > 0 {
            self.count_update(true)?;
        }
        self.weights.units.iter_mut().for_each(|unit| unit.part_begun = false);
        Ok(())
    }
}
