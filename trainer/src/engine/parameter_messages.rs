//! The messages between servers and workers, on the CPU.

use super::serving::{Serving, ServingRole, first_of, nobody_expected, nth};
use super::unit::Tensor;
use super::worker::Worker;
use crate::costs::pack_cost;
use crate::engine::RankEngine;
use crate::timing::{StepWork, work};
use crate::{Error, Result};
use allfold_collectives::{Communicator, Rank};
use allfold_kernels::nn::{Float, add_to, divide};
use std::ops::Range;

impl<F: Float> Worker<'_, F> {
    /// The communicator of a worker and all servers.
    fn serving_channel(&self, worker: usize) -> Result<&Communicator> {
        let missing = || Error::Strategy(format!("there is no communicator of worker {worker}"));
        self.groups.channel(worker).ok_or_else(missing)
    }

    /// The range of a unit's elements that a server has, with the padding.
    fn part_of(&self, unit: usize, server: usize) -> Range<usize> {
        let part = self.units[unit].padded / self.place.role().servers;
        server * part..(server + 1) * part
    }
}

impl<F: Float> Serving for Worker<'_, F> {
    fn pull(&mut self, unit: usize) -> Result<()> {
        for server in 0..self.place.role().servers {
            let elements = self.part_of(unit, server).len();
            let buffer = self.on.pool.take(elements);
            let work = self.serving_channel(0)?.recv_async(buffer.into(), Rank(server as u32))?;
            nth(&mut self.messages.pulls, unit).push(work);
            self.away += elements;
        }
        Ok(())
    }

    fn pulled(&mut self, unit: usize) -> Result<()> {
        let works = std::mem::take(nth(&mut self.messages.pulls, unit));
        for (server, work) in works.into_iter().enumerate() {
            let values = self.arrived(work)?;
            let part = self.part_of(unit, server);
            self.units[unit].params.here_mut("parameters")?[part].copy_from_slice(&values);
            self.on.pool.push(values.into_vec());
        }
        Ok(())
    }

    fn push(&mut self, unit: usize) -> Result<()> {
        let ServingRole { servers, workers, .. } = self.place.role();
        let (start, elements) = (self.groups.world.now(), self.units[unit].values.len());
        let grads = self.units[unit].grads.here_mut("gradients")?;
        grads[elements..].fill(F::ZERO);
        divide(&mut grads[..elements], F::from_f64(workers as f64));
        self.groups.world.charge(&work(pack_cost::<F>(elements)));
        self.did(StepWork::Divide, None, start);
        for server in 0..servers {
            let part = self.part_of(unit, server);
            self.away += part.len();
            let mut copy = self.on.pool.take(part.len());
            copy.copy_from_slice(&self.units[unit].grads.here("gradients")?[part]);
            let work = self.serving_channel(0)?.send_async(copy.into(), Rank(server as u32))?;
            self.messages.sent.push(work);
        }
        Ok(())
    }

    fn serve(&mut self, unit: usize, worker: usize) -> Result<()> {
        let part = &self.units[unit].param_part;
        self.away += part.len();
        let mut copy = self.on.pool.take(part.len());
        copy.copy_from_slice(part);
        let to = Rank(self.place.role().servers as u32);
        let work = self.serving_channel(worker)?.send_async(copy.into(), to)?;
        nth(&mut self.messages.served, worker).push(work);
        Ok(())
    }

    fn expect(&mut self, units: &[usize], worker: usize) -> Result<()> {
        let from = Rank(self.place.role().servers as u32);
        for &unit in units {
            let elements = self.units[unit].param_part.len();
            let buffer = self.on.pool.take(elements);
            let work = self.serving_channel(worker)?.recv_async(buffer.into(), from)?;
            nth(&mut self.messages.expected, worker).push((unit, work));
            self.away += elements;
        }
        Ok(())
    }

    fn first_pushed(&mut self, workers: &[usize]) -> Result<usize> {
        let before = self.groups.world.now();
        // On virtual time each call of `is_done` advances the clock.
        let first = first_of(workers, |worker| {
            let (_, last) = nth(&mut self.messages.expected, worker).last().ok_or_else(nobody_expected)?;
            Ok(last.is_done())
        })?;
        self.waited_since(before);
        Ok(first)
    }

    fn take_push(&mut self, worker: usize) -> Result<()> {
        // The worker has received the parameters that were sent to it, since it has computed with them.
        let served = std::mem::take(nth(&mut self.messages.served, worker));
        self.recycle_all(served)?;
        for (unit, push) in std::mem::take(nth(&mut self.messages.expected, worker)) {
            let values = self.arrived(push)?;
            let start = self.groups.world.now();
            let state = &mut self.units[unit];
            match state.grad_part_begun {
                true => add_to(&mut state.grad_part, &values),
                false => {
                    state.grad_part.clear();
                    state.grad_part.extend_from_slice(&values);
                }
            }
            state.grad_part_begun = true;
            self.groups.world.charge(&work(pack_cost::<F>(values.len())));
            self.did(StepWork::Update, None, start);
            self.on.pool.push(values.into_vec());
        }
        Ok(())
    }

    fn apply_pushes(&mut self) -> Result<()> {
        self.update()?;
        self.units.iter_mut().for_each(|unit| unit.grad_part_begun = false);
        Ok(())
    }
}

impl<F: Float> Worker<'_, F> {
    /// Gives every rank the parameters that the servers have.
    pub(super) fn download_served(&mut self, params: &mut [F], buffers: &mut Vec<F>) -> Result<()> {
        let role = self.place.role();
        self.groups.world.broadcast(&mut self.buffers, Rank(role.servers as u32))?;
        for unit in 0..self.units.len() {
            let values = self.units[unit].values.clone();
            let mut whole = vec![F::ZERO; self.units[unit].padded];
            for server in 0..role.servers {
                let part = &mut whole[self.part_of(unit, server)];
                if role.server == Some(server) {
                    part.copy_from_slice(&self.units[unit].param_part);
                }
                self.groups.world.broadcast(part, Rank(server as u32))?;
            }
            whole.truncate(values.len());
            if let Tensor::Here(own) = &mut self.units[unit].params {
                own[..values.len()].copy_from_slice(&whole);
            }
            params[values].copy_from_slice(&whole);
        }
        buffers.clear();
        buffers.extend_from_slice(&self.buffers);
        Ok(())
    }
}
