//! A rank of a parameter server on the clock.
//!
//! Servers and workers do different things at different times, and the messages of all workers share the links of a server. So every rank
//! is stepped, and messages without contents go over the links of a [`World`](allfold_collectives::World) on virtual time, whose clock
//! follows this rank's before each of its operations, and leads it afterwards.

use super::ClockRank;
use super::exchanges::Queue;
use super::rooms::Room;
use allfold_collectives::{Buffer, Communicator, DType, Rank, ReduceOp, Work};
use allfold_sim::Picos;
use allfold_trainer::engine::{Mesh, RankEngine, Serving, ServingRole, split_workers};
use allfold_trainer::timing::StepWork;
use allfold_trainer::{Error, Result};

/// A message that is under way, with its buffer if those are known.
struct Message {
    work: Work<Buffer<u8>>,
    room: Option<Room>,
}

/// The communicators of a rank, and its messages that are under way.
pub(crate) struct ServingLinks {
    world: Communicator,
    /// The workers, or the servers.
    alike: Option<Communicator>,
    /// On a server one of each worker, on a worker its own: the worker and all servers.
    messages: Vec<Communicator>,
    /// On a worker, for each unit: its parameters from each server. Besides, what it sent.
    pulls: Vec<Vec<Message>>,
    sent: Vec<Message>,
    /// On a server, for each worker: the gradients of units expected of the worker, and the parameters sent to the worker.
    expected: Vec<Vec<(usize, Message)>>,
    served: Vec<Vec<Message>>,
}

impl ServingLinks {
    /// Separates servers from workers. Every rank of `world` must call it.
    pub fn new(world: Communicator, mesh: &Mesh, units: usize) -> Result<ServingLinks> {
        let (alike, messages) = split_workers(&world, mesh)?;
        let (pulls, sent) = ((0..units).map(|_| Vec::new()).collect(), Vec::new());
        let expected = (0..mesh.data).map(|_| Vec::new()).collect();
        let served = (0..mesh.data).map(|_| Vec::new()).collect();
        Ok(ServingLinks { world, alike, messages, pulls, sent, expected, served })
    }

    pub fn now(&self) -> Picos {
        self.world.now()
    }
}

impl ClockRank<'_> {
    /// This rank's communicators, whose clock is now this rank's.
    fn links(&mut self) -> Result<&mut ServingLinks> {
        let none = || Error::Strategy("a rank without servers has no messages of servers".into());
        let links = self.serving.as_mut().ok_or_else(none)?;
        links.world.advance(Picos(self.now.0.saturating_sub(links.now().0)));
        Ok(links)
    }

    /// The communicator of a worker and all servers.
    fn serving_channel(&mut self, worker: usize) -> Result<&Communicator> {
        let missing = || Error::Strategy(format!("there is no communicator of worker {worker}"));
        self.links()?.messages.get(worker).ok_or_else(missing)
    }

    /// The bytes of a unit that each server has.
    fn part_bytes(&self, unit: usize) -> usize {
        self.units[unit].layout.padded / self.role().servers * self.with.costs.element()
    }

    /// Waits for messages.
    fn wait_for(&mut self, messages: Vec<Message>) -> Result<()> {
        for Message { work, room } in messages {
            self.links()?;
            work.wait()?;
            let now = self.links()?.now();
            self.wait_until(now);
            if let (Some(memory), Some(room)) = (&mut self.memory, room) {
                memory.arrived(room);
            }
        }
        Ok(())
    }

    /// A message of a server's part of a unit, which is under way.
    fn message(&mut self, work: Work<Buffer<u8>>, unit: usize) -> Message {
        let elements = self.part_bytes(unit) / self.with.costs.element();
        let room = self.memory.as_mut().map(|memory| memory.message(elements));
        Message { work, room }
    }

    /// Waits for what this rank sent as a worker.
    pub(super) fn wait_for_pushes(&mut self) -> Result<()> {
        let sent = self.serving.as_mut().map(|links| std::mem::take(&mut links.sent));
        self.wait_for(sent.unwrap_or_default())
    }

    /// Sums `count` elements over all ranks, or over those that are servers or workers as this one is. Returns when it is done.
    pub(super) fn sum_beside_servers(&mut self, queue: Queue, what: (usize, DType)) -> Result<Picos> {
        let links = self.links()?;
        let alike = links.alike.as_ref().filter(|_| queue != Queue::World);
        let group = alike.unwrap_or(&links.world);
        match what {
            (count, DType::U8) => group.all_reduce(&mut vec![0u8; count], ReduceOp::Max)?,
            (count, _) => group.all_reduce(&mut vec![0f64; count], ReduceOp::Sum)?,
        }
        Ok(links.now())
    }
}

impl Serving for ClockRank<'_> {
    fn role(&self) -> ServingRole {
        let mesh = &self.with.mesh;
        let server = mesh.is_server(self.rank).then_some(self.rank);
        ServingRole { servers: mesh.servers, workers: mesh.data, server }
    }

    fn pull(&mut self, unit: usize) -> Result<()> {
        let bytes = self.part_bytes(unit);
        for server in 0..self.role().servers {
            let work = self.serving_channel(0)?.recv_length_async(bytes, Rank(server as u32))?;
            let message = self.message(work, unit);
            self.links()?.pulls[unit].push(message);
        }
        Ok(())
    }

    fn pulled(&mut self, unit: usize) -> Result<()> {
        let messages = std::mem::take(&mut self.links()?.pulls[unit]);
        self.wait_for(messages)
    }

    fn push(&mut self, unit: usize) -> Result<()> {
        let (elements, bytes) = (self.units[unit].layout.values.len(), self.part_bytes(unit));
        self.does(StepWork::Divide, None, self.with.costs.pack(elements));
        for server in 0..self.role().servers {
            let work = self.serving_channel(0)?.send_length_async(bytes, Rank(server as u32))?;
            let message = self.message(work, unit);
            self.links()?.sent.push(message);
        }
        Ok(())
    }

    fn serve(&mut self, unit: usize, worker: usize) -> Result<()> {
        let (bytes, to) = (self.part_bytes(unit), Rank(self.role().servers as u32));
        let work = self.serving_channel(worker)?.send_length_async(bytes, to)?;
        let message = self.message(work, unit);
        self.links()?.served[worker].push(message);
        Ok(())
    }

    fn expect(&mut self, units: &[usize], worker: usize) -> Result<()> {
        let from = Rank(self.role().servers as u32);
        for &unit in units {
            let bytes = self.part_bytes(unit);
            let work = self.serving_channel(worker)?.recv_length_async(bytes, from)?;
            let message = self.message(work, unit);
            self.links()?.expected[worker].push((unit, message));
        }
        Ok(())
    }

    fn first_pushed(&mut self, workers: &[usize]) -> Result<usize> {
        let links = self.links()?;
        let first = allfold_trainer::engine::first_of(workers, |worker| {
            Ok(links.expected[worker].last().is_some_and(|(_, last)| last.work.is_done()))
        })?;
        let now = links.now();
        self.wait_until(now);
        Ok(first)
    }

    fn take_push(&mut self, worker: usize) -> Result<()> {
        let served = std::mem::take(&mut self.links()?.served[worker]);
        self.wait_for(served)?;
        for (unit, message) in std::mem::take(&mut self.links()?.expected[worker]) {
            self.wait_for(vec![message])?;
            self.memory.iter_mut().for_each(|memory| memory.units.keep_part(unit));
            let elements = self.part_bytes(unit) / self.with.costs.element();
            self.does(StepWork::Update, None, self.with.costs.pack(elements));
        }
        Ok(())
    }

    fn apply_pushes(&mut self) -> Result<()> {
        self.update()
    }
}
