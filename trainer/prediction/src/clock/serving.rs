//! A rank of a parameter server on the clock.
//!
//! Servers and workers do different things at different times, and the messages of all workers share the links of a server. So every
//! rank is stepped, and its messages are sent over the links of a world on virtual time.

use super::ClockRank;
use super::exchanges::{Exchanges, Pending};
use super::links::ServingMessage;
use crate::ElementPass;
use allfold_collectives::{Buffer, Rank, Work};
use allfold_trainer::Result;
use allfold_trainer::engine::{RankEngine, Serving, first_of, nth};
use allfold_trainer::timing::StepWork;

impl ClockRank<'_> {
    /// The bytes of a unit that each server has.
    fn part_bytes(&self, unit: usize) -> usize {
        self.units[unit].layout.padded / self.place.role().servers * self.with.costs.element()
    }

    /// Waits for messages.
    fn wait_for(&mut self, messages: Vec<ServingMessage>) -> Result<()> {
        for ServingMessage { work, buffer } in messages {
            self.wait(Pending::Work(work))?;
            if let (Some(memory), Some(buffer)) = (&mut self.memory, buffer) {
                memory.arrived(buffer);
            }
        }
        Ok(())
    }

    /// A message of a server's part of a unit, which is under way.
    fn message(&mut self, work: Work<Buffer<u8>>, unit: usize) -> ServingMessage {
        let elements = self.part_bytes(unit) / self.with.costs.element();
        let buffer = self.memory.as_mut().map(|memory| memory.message(elements));
        ServingMessage { work, buffer }
    }

    /// Waits for the messages that this rank sent as a worker.
    pub(super) fn wait_for_pushes(&mut self) -> Result<()> {
        match &mut self.exchanges.by {
            Exchanges::Links(links) => {
                let sent = std::mem::take(&mut links.messages.sent);
                self.wait_for(sent)
            }
            Exchanges::Modeled { .. } => Ok(()),
        }
    }
}

impl Serving for ClockRank<'_> {
    fn pull(&mut self, unit: usize) -> Result<()> {
        let bytes = self.part_bytes(unit);
        for server in 0..self.place.role().servers {
            let links = self.exchanges.links(self.clock.now)?;
            let work = links.channel(0)?.recv_length_async(bytes, Rank(server as u32))?;
            let message = self.message(work, unit);
            nth(&mut self.exchanges.links(self.clock.now)?.messages.pulls, unit).push(message);
        }
        Ok(())
    }

    fn pulled(&mut self, unit: usize) -> Result<()> {
        let messages = std::mem::take(nth(&mut self.exchanges.links(self.clock.now)?.messages.pulls, unit));
        self.wait_for(messages)
    }

    fn push(&mut self, unit: usize) -> Result<()> {
        let (elements, bytes) = (self.units[unit].layout.values.len(), self.part_bytes(unit));
        self.clock.does(StepWork::Divide, None, self.with.costs.over(ElementPass::Pack, elements));
        for server in 0..self.place.role().servers {
            let links = self.exchanges.links(self.clock.now)?;
            let work = links.channel(0)?.send_length_async(bytes, Rank(server as u32))?;
            let message = self.message(work, unit);
            self.exchanges.links(self.clock.now)?.messages.sent.push(message);
        }
        Ok(())
    }

    fn serve(&mut self, unit: usize, worker: usize) -> Result<()> {
        let (bytes, to) = (self.part_bytes(unit), Rank(self.place.role().servers as u32));
        let work = self.exchanges.links(self.clock.now)?.channel(worker)?.send_length_async(bytes, to)?;
        let message = self.message(work, unit);
        nth(&mut self.exchanges.links(self.clock.now)?.messages.served, worker).push(message);
        Ok(())
    }

    fn expect(&mut self, units: &[usize], worker: usize) -> Result<()> {
        let from = Rank(self.place.role().servers as u32);
        for &unit in units {
            let bytes = self.part_bytes(unit);
            let work =
                self.exchanges.links(self.clock.now)?.channel(worker)?.recv_length_async(bytes, from)?;
            let message = self.message(work, unit);
            nth(&mut self.exchanges.links(self.clock.now)?.messages.expected, worker).push((unit, message));
        }
        Ok(())
    }

    fn first_pushed(&mut self, workers: &[usize]) -> Result<usize> {
        let links = self.exchanges.links(self.clock.now)?;
        let first = first_of(workers, |worker| {
            Ok(nth(&mut links.messages.expected, worker).last().is_some_and(|(_, last)| last.work.is_done()))
        })?;
        let now = links.now();
        self.clock.wait_until(now);
        Ok(first)
    }

    fn take_push(&mut self, worker: usize) -> Result<()> {
        let served = std::mem::take(nth(&mut self.exchanges.links(self.clock.now)?.messages.served, worker));
        self.wait_for(served)?;
        for (unit, message) in
            std::mem::take(nth(&mut self.exchanges.links(self.clock.now)?.messages.expected, worker))
        {
            self.wait_for(vec![message])?;
            self.memory.iter_mut().for_each(|memory| memory.units.keep_part(unit));
            let elements = self.part_bytes(unit) / self.with.costs.element();
            self.clock.does(StepWork::Update, None, self.with.costs.over(ElementPass::Pack, elements));
        }
        Ok(())
    }

    fn apply_pushes(&mut self) -> Result<()> {
        self.update()
    }
}
