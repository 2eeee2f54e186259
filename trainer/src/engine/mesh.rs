//! Ranks in a mesh with named axes.

use crate::{Error, Result};

/// An axis of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MeshAxis {
    /// Ranks with samples of their own.
    Data,
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
        Ok(Mesh { data: ranks / pipeline, pipeline })
    }

    /// Every rank with samples of its own.
    pub fn of_data(ranks: u32) -> Mesh {
        Mesh { data: ranks as usize, pipeline: 1 }
    }

    /// The place of a rank.
    pub fn position(&self, rank: usize, axis: MeshAxis) -> AxisPosition {
        match axis {
            MeshAxis::Data => AxisPosition { index: rank % self.data, size: self.data },
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
        assert_eq!(mesh, Mesh { data: 4, pipeline: 3 });
        let places = (0..12)
            .map(|rank| [MeshAxis::Data, MeshAxis::Pipeline].map(|axis| mesh.position(rank, axis).index));
        assert!(places.zip(0..).all(|([data, stage], rank)| stage * 4 + data == rank));
        let error = Mesh::of_stages(5, 12).unwrap_err().to_string();
        assert!(error.contains("5") && error.contains("divisor of 12"), "{error}");
    }
}
