//! The communicators of a rank on a clock, and the calls of layers to the ranks along their axis.

use super::ClockRank;
use crate::{GroupedCollective, RankGroups};
use allfold_collectives::{Collective, DType, Rank};
use allfold_sim::Picos;
use allfold_trainer::engine::MeshAxis;
use allfold_trainer::layers::PeerCall;
use allfold_trainer::timing::work_of;
use allfold_trainer::{Phase, Result};
use std::sync::Arc;

/// A communicator, whose operations follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Queue {
    /// All ranks.
    World,
    /// The ranks along an axis.
    Along(MeshAxis),
    /// The stages that hold a copy of a unit.
    Copies(usize),
}

impl ClockRank<'_> {
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
                let stage = mesh.position(self.rank, MeshAxis::Pipeline).index;
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

    /// Starts a collective after those that its communicator has not done yet. Returns when it is done.
    pub(super) fn start_collective(
        &mut self,
        queue: Queue,
        collective: Collective,
        (count, dtype): (usize, DType),
    ) -> Result<Picos> {
        if self.serving.is_some() {
            return self.sum_beside_servers(queue, (count, dtype));
        }
        let mut start = self.now.later(self.free.get(&queue).copied().unwrap_or_default());
        let among = self.groups(queue);
        let own = among.groups.iter().find(|group| group.contains(&Rank(self.rank as u32)));
        let own = own.map_or(&[][..], |group| &group[..]);
        let stepped = own.iter().filter(|rank| self.with.ranks.contains(&rank.index())).count();
        if stepped > 1 {
            let met = self.met.entry(queue).or_default();
            *met += 1;
            start = self.with.meetings.meet((queue, own[0], *met), stepped, start)?;
        }
        let call = GroupedCollective { collective, count, dtype, among: &among };
        let done = start + self.with.exchange.collective(call)?;
        self.free.insert(queue, done);
        Ok(done)
    }

    /// Runs a collective and waits for it.
    pub(super) fn run_collective(
        &mut self,
        queue: Queue,
        collective: Collective,
        what: (usize, DType),
    ) -> Result<()> {
        let done = self.start_collective(queue, collective, what)?;
        self.wait_until(done);
        Ok(())
    }

    /// Runs what a phase of micro-batch `micro` calls of the ranks along the axis of its layer.
    pub(super) fn call_peers(
        &mut self,
        axis: MeshAxis,
        calls: Vec<PeerCall>,
        (phase, micro): (Phase, Option<usize>),
    ) -> Result<()> {
        let (queue, dtype) = (self.along(axis), self.dtype());
        let size = self.with.mesh.position(self.rank, axis).size;
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
                    let done = self.shift.take().unwrap_or(self.now);
                    self.wait_until(done);
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
