//! Ranks in a mesh with named axes.

use crate::{Error, Result};

/// An axis of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MeshAxis {
    /// Ranks with samples of their own.
    Data,
    /// Ranks of the data axis that share one copy of what is sharded: neighbours, such as those of a node.
    Shard,
    /// Ranks of the data axis that hold the same parts.
    Replica,
    /// Ranks with layers of their own: the stages of a pipeline.
    Pipeline,
}

/// A rank's place on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisPosition {
    /// The position, from 0.
    pub index: usize,
    /// Ranks along the axis.
    pub size: usize,
}

/// The size of each axis. Ranks are numbered along the data axis first: the ranks of a stage are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Ranks with samples of their own.
    pub data: usize,
    /// Ranks of the data axis that share one copy of what is sharded; divides `data`.
    pub shard: usize,
    /// Stages.
    pub pipeline: usize,
}

impl Mesh {
    /// `ranks` ranks in `stages` stages (0: each rank is a stage).
    ///
    /// # Errors
    /// Stages that the ranks do not divide among.
    pub fn of_stages(stages: usize, ranks: u32) -> Result<Mesh> {
        let ranks = ranks as usize;
        let pipeline = if stages == 0 { ranks } else { stages };
        if !ranks.is_multiple_of(pipeline) {
            return Err(Error::Config(format!(
                "`parallel.stages` is {pipeline}, which does not divide the {ranks} ranks; use a divisor of {ranks}"
            )));
        }
        let data = ranks / pipeline;
        Ok(Mesh { data, shard: data, pipeline })
    }

    /// Every rank with samples of its own.
    pub fn of_data(ranks: u32) -> Mesh {
        Mesh { data: ranks as usize, shard: ranks as usize, pipeline: 1 }
    }

    /// This mesh with `shard` neighbours of the data axis sharing one copy (0: all of them).
    ///
    /// # Errors
    /// A number that does not divide the ranks of the data axis.
    pub fn sharded(self, shard: usize) -> Result<Mesh> {
        let shard = if shard == 0 { self.data } else { shard };
        if !self.data.is_multiple_of(shard) {
            let data = self.data;
            return Err(Error::Config(format!(
                "`parallel.shard` is {shard}, which does not divide the {data} ranks with samples of their own; use a divisor \
                 of {data}"
            )));
        }
        Ok(Mesh { shard, ..self })
    }

    /// The place of a rank.
    pub fn position(&self, rank: usize, axis: MeshAxis) -> AxisPosition {
        match axis {
            MeshAxis::Data => AxisPosition { index: rank % self.data, size: self.data },
            MeshAxis::Shard => AxisPosition { index: rank % self.data % self.shard, size: self.shard },
            MeshAxis::Replica => {
                AxisPosition { index: rank % self.data / self.shard, size: self.data / self.shard }
            }
            MeshAxis::Pipeline => AxisPosition { index: rank / self.data, size: self.pipeline },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_place_of_its_own() {
        let mesh = Mesh::of_stages(3, 12).unwrap();
        assert_eq!(mesh, Mesh { data: 4, shard: 4, pipeline: 3 });
        let places = (0..12)
            .map(|rank| [MeshAxis::Data, MeshAxis::Pipeline].map(|axis| mesh.position(rank, axis).index));
        assert!(places.zip(0..).all(|([data, stage], rank)| stage * 4 + data == rank));
        let sharded = mesh.sharded(2).unwrap();
        let parts =
            |rank| [MeshAxis::Shard, MeshAxis::Replica].map(|axis| sharded.position(rank, axis).index);
        assert_eq!([4, 5, 6, 7].map(parts), [[0, 0], [1, 0], [0, 1], [1, 1]]);
        assert!(mesh.sharded(3).unwrap_err().to_string().contains("divisor of 4"));
        let error = Mesh::of_stages(5, 12).unwrap_err().to_string();
        assert!(error.contains("5") && error.contains("divisor of 12"), "{error}");
    }
}
