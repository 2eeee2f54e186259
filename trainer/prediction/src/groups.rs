//! Which ranks of a mesh exchange with each other at the same time.

use allfold_collectives::Rank;
use allfold_trainer::engine::{Mesh, MeshAxis};

/// Groups of ranks that do the same exchange at the same time, such as all groups along an axis. Ranks in no group do nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankGroups {
    /// The number of ranks, inside and outside of the groups.
    pub ranks: u32,
    /// The ranks of each group by their position in it. All groups are equally large.
    pub groups: Vec<Vec<Rank>>,
}

impl RankGroups {
    /// One group of all ranks.
    pub fn everyone(ranks: u32) -> RankGroups {
        RankGroups { ranks, groups: vec![(0..ranks).map(Rank).collect()] }
    }

    /// The groups along an axis of `mesh`; of the ranks of pipeline stage `stage`, unless the axis is the pipeline itself.
    pub fn along(mesh: &Mesh, axis: MeshAxis, stage: usize) -> RankGroups {
        let ranks = mesh.ranks();
        let place = |rank: usize, axis| mesh.position(rank, axis).index;
        let key = |rank: usize| mesh.group(rank, axis);
        let takes_part =
            |rank: &usize| axis == MeshAxis::Pipeline || place(*rank, MeshAxis::Pipeline) == stage;
        let mut members: Vec<usize> = (0..ranks).filter(takes_part).collect();
        members.sort_by_key(|&rank| (key(rank), place(rank, axis)));
        let groups = members.chunk_by(|one, other| key(*one) == key(*other));
        let groups = groups.map(|group| group.iter().map(|rank| Rank(*rank as u32)).collect());
        RankGroups { ranks: ranks as u32, groups: groups.collect() }
    }

    /// These groups with the members at some positions alone.
    pub fn only(&self, positions: &[usize]) -> RankGroups {
        let groups = self.groups.iter().map(|group| positions.iter().map(|at| group[*at]).collect());
        RankGroups { ranks: self.ranks, groups: groups.collect() }
    }

    /// The number of ranks of a group.
    pub fn size(&self) -> u32 {
        self.groups.first().map_or(0, |group| group.len() as u32)
    }

    /// Whether there is one group, of all ranks in their order.
    pub fn is_everyone(&self) -> bool {
        *self == RankGroups::everyone(self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_ranks_communicators() {
        // Two stages of two ranks with samples of their own, each of two ranks that share layers.
        let mesh = Mesh::of_stages(2, 2, 8).unwrap();
        let along = |axis, stage| {
            let groups = RankGroups::along(&mesh, axis, stage).groups;
            groups
                .into_iter()
                .map(|group| group.into_iter().map(|rank| rank.0).collect())
                .collect::<Vec<Vec<u32>>>()
        };
        assert_eq!(along(MeshAxis::Tensor, 0), [[0, 1], [2, 3]]);
        assert_eq!(along(MeshAxis::Data, 1), [[4, 6], [5, 7]]);
        assert_eq!(along(MeshAxis::Pipeline, 1), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        let sharded = Mesh::of_data(1, 8).unwrap().sharded(4).unwrap();
        let replicas = RankGroups::along(&sharded, MeshAxis::Replica, 0);
        assert_eq!(replicas.groups, [[0, 4], [1, 5], [2, 6], [3, 7]].map(|pair| pair.map(Rank)));
        assert!(RankGroups::along(&sharded, MeshAxis::Data, 0).is_everyone());
        assert_eq!(replicas.only(&[1]).groups, [[4], [5], [6], [7]].map(|one| one.map(Rank)));
    }
}
