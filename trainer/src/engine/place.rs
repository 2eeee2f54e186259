//! A rank's place in the mesh, and its units: what the engines of all devices know of their rank.

use super::{AxisPosition, Keep, Mesh, MeshAxis, ParamUnit, ServingRole, units_of_layers};
use crate::{Outline, Phase};
use allfold_networks::layer_of;
use std::sync::Arc;

/// A rank's place in the mesh, and the units of its network.
#[derive(Clone, Debug)]
pub struct RankPlace {
    /// The mesh of all ranks.
    pub mesh: Mesh,
    /// The number of this rank in the mesh.
    pub rank: usize,
    /// The network's structure.
    pub outline: Arc<Outline>,
    /// The units, in order of layers.
    pub units: Vec<ParamUnit>,
    /// For each layer: the unit of its parameters.
    pub units_of_layers: Vec<usize>,
    /// Whether the first rank of the data axis trains, and the others compute for it.
    pub is_led: bool,
}

impl RankPlace {
    /// Rank `rank` of `mesh`, with these units of its network.
    pub fn new((mesh, rank): (Mesh, usize), outline: Arc<Outline>, units: Vec<ParamUnit>) -> RankPlace {
        let units_of_layers = units_of_layers(&outline, &units);
        let is_led = units.iter().any(|unit| unit.keep == Keep::First);
        RankPlace { mesh, rank, outline, units, units_of_layers, is_led }
    }

    /// This rank's position on an axis. An axis that the mesh does not have has size 1.
    pub fn position(&self, axis: MeshAxis) -> AxisPosition {
        self.mesh.position(self.rank, axis)
    }

    /// The numbers of servers and workers, and the role of this rank.
    pub fn role(&self) -> ServingRole {
        let server = self.mesh.is_server(self.rank).then_some(self.rank);
        ServingRole { servers: self.mesh.servers, workers: self.mesh.data, server }
    }

    /// The unit whose parameters a phase reads or whose gradient it computes, if it does either.
    pub fn unit_of(&self, phase: Phase) -> Option<usize> {
        let sums = matches!(phase, Phase::SyncForward(_) | Phase::SyncBackward(_));
        let layer = layer_of(phase).filter(|_| !sums)?;
        (!self.outline.values_of(layer).is_empty()).then(|| self.units_of_layers[layer])
    }

    /// Whether a unit's parameters are those of some experts, of which other ranks have others.
    pub fn has_some_experts(&self, unit: usize) -> bool {
        self.outline.has_some_experts(&self.units[unit].layers)
    }

    /// The axis of the ranks that hold the same parameters of a unit.
    pub fn holders(&self, unit: usize) -> MeshAxis {
        if self.has_some_experts(unit) { MeshAxis::ExpertReplica } else { MeshAxis::Data }
    }

    /// Among the ranks that hold the same parameters of a unit, the axis of those that share one copy.
    pub fn sharers(&self, unit: usize) -> MeshAxis {
        if self.has_some_experts(unit) { MeshAxis::ExpertReplica } else { MeshAxis::Shard }
    }

    /// Which part of a unit this rank keeps, of how many.
    pub fn part(&self, unit: usize) -> AxisPosition {
        let axis = match (self.units[unit].keep, self.mesh.servers) {
            (Keep::First, _) => MeshAxis::Data,
            (_, 0) => self.sharers(unit),
            (_, size) => return AxisPosition { index: self.role().server.unwrap_or_default(), size },
        };
        self.position(axis)
    }

    /// Whether this rank is the first of the ranks of its stage that keep the same elements of a unit.
    pub fn is_first(&self, unit: usize) -> bool {
        let axis = match self.units[unit].keep {
            Keep::Whole | Keep::First => self.holders(unit),
            _ => MeshAxis::Replica,
        };
        self.position(axis).index == 0
    }

    /// Whether ranks keep parts of some unit.
    pub fn is_cut(&self) -> bool {
        let cut = |keep| matches!(keep, Keep::ShardedState | Keep::ShardedGradients | Keep::Sharded);
        self.units.iter().any(|unit| cut(unit.keep))
    }

    /// The parts of the samples of the loss of which this rank has one: with `data_parallel`, ranks after the first hold only their own
    /// samples.
    pub fn loss_parts(&self) -> usize {
        let data = self.position(MeshAxis::Data);
        if self.is_led && data.index > 0 { data.size } else { 1 }
    }
}
