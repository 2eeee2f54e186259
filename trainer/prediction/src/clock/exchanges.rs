//! The communicators of a rank on a clock, and the calls of layers to the ranks along their axis.

use super::links::WorldLinks;
use super::sync_points::SyncPoints;
use super::{ClockRank, Queue};
use crate::exchange::SharedExchange;
use crate::{GroupedCollective, RankGroups};
use allfold_collectives::{Buffer, Collective, DType, Rank, Work};
use allfold_sim::Picos;
use allfold_trainer::engine::MeshAxis;
use allfold_trainer::layers::PeerCall;
use allfold_trainer::timing::work_of;
use allfold_trainer::{Error, Phase, Result};
use std::sync::Arc;

/// What gives the exchanges of a rank their times.
pub(crate) enum Exchanges<'a> {
    /// A model of the time from the moment at which all ranks have entered an exchange; stepped ranks synchronise at
    /// `sync_points`.
    Modeled { sync_points: &'a SyncPoints, model: &'a dyn SharedExchange },
    /// Virtual links, which carry all exchanges; every rank is stepped.
    Links(Box<WorldLinks<'a>>),
}

/// An exchange that was started.
pub(super) enum Pending {
    /// The exchange is done at this time.
    At(Picos),
    /// One end of a message at the synchronisation points.
    Message(usize),
    /// The exchange is on virtual links.
    Work(Work<Buffer<u8>>),
}

impl<'a> ClockRank<'a> {
    /// This rank's communicators, whose clock is now this rank's.
    pub(super) fn links(&mut self) -> Result<&mut WorldLinks<'a>> {
        match &mut self.exchanges {
            Exchanges::Links(links) => {
                links.follow(self.now);
                Ok(links)
            }
            Exchanges::Modeled { .. } => {
                Err(Error::Strategy("a rank without servers has no messages of servers".into()))
            }
        }
    }

    /// When an exchange is done.
    pub(super) fn end(&mut self, exchange: Pending) -> Result<Picos> {
        match (exchange, &self.exchanges) {
            (Pending::At(done), _) => Ok(done),
            (Pending::Message(end), Exchanges::Modeled { sync_points, .. }) => sync_points.done(end),
            (Pending::Message(_), Exchanges::Links(_)) => {
                Err(Error::Strategy("virtual links have no synchronisation points".into()))
            }
            (Pending::Work(work), _) => {
                self.links()?;
                Ok(work.wait_timed()?.1)
            }
        }
    }

    /// Waits for an exchange. Returns when it was done.
    pub(super) fn wait(&mut self, exchange: Pending) -> Result<Picos> {
        let done = self.end(exchange)?;
        self.wait_until(done);
        Ok(done)
    }

    /// The communicator along an axis; that of a smaller axis is the larger one's where both have the same ranks.
    pub(super) fn along(&self, axis: MeshAxis) -> Queue {
        let mesh = &self.with.mesh;
        match axis {
            MeshAxis::Shard if mesh.shard == mesh.data => self.along(MeshAxis::Data),
            MeshAxis::ExpertReplica if mesh.expert == 1 => self.along(MeshAxis::Data),
            MeshAxis::Data if mesh.pipeline == 1 && mesh.tensor == 1 && mesh.servers == 0 => Queue::World,
            _ => Queue::Along(axis),
        }
    }

    pub(super) fn groups(&mut self, queue: Queue) -> Arc<RankGroups> {
        if let Some(groups) = self.groups.get(&queue) {
            return groups.clone();
        }
        let mesh = &self.with.mesh;
        let groups = match queue {
            Queue::World => RankGroups::everyone(mesh.ranks() as u32),
            Queue::Along(axis) => {
                let stage = self.place.position(MeshAxis::Pipeline).index;
                RankGroups::along(mesh, axis, stage)
            }
            Queue::Copies(unit) => {
                let stages = self.units[unit].copies.clone().unwrap_or_default();
                RankGroups::along(mesh, MeshAxis::Pipeline, 0).only(&stages)
            }
        };
        let groups = Arc::new(groups);
        self.groups.insert(queue, groups.clone());
        groups
    }

    /// Starts a collective after those that its communicator has not done yet.
    pub(super) fn start_collective(
        &mut self,
        queue: Queue,
        collective: Collective,
        (count, dtype): (usize, DType),
    ) -> Result<Pending> {
        let (sync_points, model) = match self.exchanges {
            Exchanges::Modeled { sync_points, model } => (sync_points, model),
            Exchanges::Links(_) => {
                return Ok(Pending::Work(self.links()?.collective(queue, collective, (count, dtype))?));
            }
        };
        let mut start = self.now.later(self.free.get(&queue).copied().unwrap_or_default());
        let among = self.groups(queue);
        let own = among.groups.iter().find(|group| group.contains(&Rank(self.place.rank as u32)));
        let own = own.map_or(&[][..], |group| &group[..]);
        let stepped = own.iter().filter(|rank| self.with.ranks.contains(&rank.index())).count();
        if stepped > 1 {
            let entered = self.entered.entry(queue).or_default();
            *entered += 1;
            start = sync_points.enter((queue, own[0], *entered), stepped, start)?;
        }
        let call = GroupedCollective { collective, count, dtype, among: &among };
        let done = start + model.collective(call)?;
        self.free.insert(queue, done);
        Ok(Pending::At(done))
    }

    /// Runs a collective and waits for it.
    pub(super) fn run_collective(
        &mut self,
        queue: Queue,
        collective: Collective,
        what: (usize, DType),
    ) -> Result<()> {
        let exchange = match self.exchanges {
            Exchanges::Modeled { .. } => self.start_collective(queue, collective, what)?,
            // On its own thread, as in a run: messages that begin at the same time are sent in the order of threads.
            Exchanges::Links(_) => Pending::At(self.links()?.run_collective(queue, collective, what)?),
        };
        self.wait(exchange).map(drop)
    }

    /// Runs the calls of a phase of micro-batch `micro` to the ranks along the axis of its layer.
    pub(super) fn call_peers(
        &mut self,
        axis: MeshAxis,
        calls: Vec<PeerCall>,
        (phase, micro): (Phase, Option<usize>),
    ) -> Result<()> {
        let (queue, dtype) = (self.along(axis), self.dtype());
        let size = self.place.position(axis).size;
        for call in calls {
            let (collective, count) = match call {
                PeerCall::Sum(count) | PeerCall::Max(count) => (Collective::AllReduce, count),
                PeerCall::Gather(count) => (Collective::AllGather, count),
                PeerCall::SumScattered(count) => (Collective::ReduceScatter, count / size),
                PeerCall::AllToAll(count) => (Collective::AllToAll, count / size),
                PeerCall::BeginShift(count) => {
                    self.shift = Some(self.start_collective(queue, Collective::SendRecv, (count, dtype))?);
                    continue;
                }
                PeerCall::EndShift => {
                    if let Some(shift) = self.shift.take() {
                        self.wait(shift)?;
                    }
                    continue;
                }
                PeerCall::Charge(cost) => {
                    self.does(work_of(phase), micro, self.with.costs.operation(phase, cost));
                    continue;
                }
            };
            self.run_collective(queue, collective, (count, dtype))?;
        }
        Ok(())
    }
}
