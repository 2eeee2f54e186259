//! Ranks in a mesh with named axes.

use crate::layers::MeshAxis;
use crate::{Error, Result};

/// A rank's position on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisPosition {
    /// The position of the rank on the axis, from 0.
    pub index: usize,
    /// The number of ranks along the axis.
    pub size: usize,
}

/// The size of each axis. Ranks are numbered along the tensor axis first, then along the data axis: the ranks that share layers are
/// neighbours, and so are the ranks of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// The size of the data axis.
    pub data: usize,
    /// The number of ranks of the data axis that together hold one copy of what is sharded. Divides `data`.
    pub shard: usize,
    /// The number of pipeline stages.
    pub pipeline: usize,
    /// The number of ranks that have the same samples and a part of every layer.
    pub tensor: usize,
    /// The number of ranks that share the positions of the same samples (context parallelism). Divides `data`.
    pub context: usize,
    /// The number of ranks of the data axis that share the experts. Divides `data`.
    pub expert: usize,
    /// The number of parameter servers: the first ranks, which hold the parameters for the others and have no samples.
    pub servers: usize,
}

impl Mesh {
    /// `ranks` ranks in `stages` stages (0: as many as possible), where `tensor` ranks share each copy of a stage.
    ///
    /// # Errors
    /// A number of ranks that `tensor` times `stages` does not divide.
    pub fn of_stages(stages: usize, tensor: usize, ranks: u32) -> Result<Mesh> {
        let (mesh, ranks) = (Mesh::of_data(tensor, ranks)?, ranks as usize / tensor);
        let pipeline = if stages == 0 { ranks } else { stages };
        if !ranks.is_multiple_of(pipeline) {
            let left = if tensor > 1 { " that `parallel.tensor` leaves" } else { "" };
            return Err(Error::Config(format!(
                "`parallel.stages` is {pipeline}, which does not divide the {ranks} ranks{left}; use a divisor of {ranks}"
            )));
        }
        let data = ranks / pipeline;
        Ok(Mesh { data, shard: data, pipeline, ..mesh })
    }

    /// `ranks` ranks, of which `tensor` neighbours share each model and its samples.
    ///
    /// # Errors
    /// A number that does not divide the ranks.
    pub fn of_data(tensor: usize, ranks: u32) -> Result<Mesh> {
        let ranks = ranks as usize;
        if !ranks.is_multiple_of(tensor) {
            return Err(Error::Config(format!(
                "`parallel.tensor` is {tensor}, which does not divide the {ranks} ranks; use a divisor of {ranks}"
            )));
        }
        let data = ranks / tensor;
        Ok(Mesh { data, shard: data, pipeline: 1, tensor, context: 1, expert: 1, servers: 0 })
    }

    /// `servers` ranks that hold parameters, and workers with samples of their own.
    pub fn of_servers(servers: usize, ranks: u32) -> Mesh {
        let data = ranks as usize - servers;
        Mesh { data, shard: data, pipeline: 1, tensor: 1, context: 1, expert: 1, servers }
    }

    /// This mesh with `context` neighbours of the data axis sharing the positions of their samples.
    ///
    /// # Errors
    /// A number that does not divide the ranks of the data axis.
    pub fn sharing_positions(self, context: usize) -> Result<Mesh> {
        if !self.data.is_multiple_of(context) {
            let data = self.data;
            return Err(Error::Config(format!(
                "`parallel.context` is {context}, which does not divide the {data} ranks of the data axis; use a divisor of {data}"
            )));
        }
        Ok(Mesh { context, ..self })
    }

    /// This mesh with `expert` neighbours of the data axis sharing the experts.
    ///
    /// # Errors
    /// A number that does not divide the ranks of the data axis.
    pub fn sharing_experts(self, expert: usize) -> Result<Mesh> {
        if !self.data.is_multiple_of(expert) {
            let data = self.data;
            return Err(Error::Config(format!(
                "`parallel.expert` is {expert}, which does not divide the {data} ranks of the data axis; use a divisor of {data}"
            )));
        }
        Ok(Mesh { expert, ..self })
    }

    /// This mesh with `shard` neighbours of the data axis (0: all ranks of the axis) holding one copy of what is sharded.
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

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.servers + self.data * self.pipeline * self.tensor
    }

    /// The first rank of a stage of the pipeline.
    pub fn first_of_stage(&self, stage: usize) -> usize {
        self.servers + stage * self.data * self.tensor
    }

    /// Whether a rank is a server.
    pub fn is_server(&self, rank: usize) -> bool {
        rank < self.servers
    }

    /// The position of a rank on an axis. A server has the first position on every axis.
    pub fn position(&self, rank: usize, axis: MeshAxis) -> AxisPosition {
        let rank = rank.saturating_sub(self.servers);
        let (tensor, rest) = (rank % self.tensor, rank / self.tensor);
        let (data, stage) = (rest % self.data, rest / self.data);
        let (index, size) = match axis {
            MeshAxis::Data => (data, self.data),
            MeshAxis::Shard => (data % self.shard, self.shard),
            MeshAxis::Replica => (data / self.shard, self.data / self.shard),
            MeshAxis::Pipeline => (stage, self.pipeline),
            MeshAxis::Tensor => (tensor, self.tensor),
            MeshAxis::Context => (data % self.context, self.context),
            MeshAxis::Expert => (data % self.expert, self.expert),
            MeshAxis::ExpertReplica => (data / self.expert, self.data / self.expert),
        };
        AxisPosition { index, size }
    }

    /// The number of the group that a rank belongs to along an axis: ranks with the same number exchange with each other there.
    pub fn group(&self, rank: usize, axis: MeshAxis) -> usize {
        let place = |axis| self.position(rank, axis).index;
        let [data, stage, tensor] = [MeshAxis::Data, MeshAxis::Pipeline, MeshAxis::Tensor].map(place);
        let (stage, data, tensor) = match axis {
            MeshAxis::Data => (stage, 0, tensor),
            MeshAxis::Pipeline => (0, data, tensor),
            MeshAxis::Tensor => (stage, data, 0),
            MeshAxis::Shard => (stage, place(MeshAxis::Replica), tensor),
            MeshAxis::Replica => (stage, place(MeshAxis::Shard), tensor),
            MeshAxis::Context => (stage, data / self.context, tensor),
            MeshAxis::Expert => (stage, place(MeshAxis::ExpertReplica), tensor),
            MeshAxis::ExpertReplica => (stage, place(MeshAxis::Expert), tensor),
        };
        (stage * self.data + data) * self.tensor + tensor
    }

    /// Whether the ranks along an axis need a group of their own: they are neither one rank each nor all ranks, nor for the shard axis
    /// those of the data axis.
    pub fn splits(&self, axis: MeshAxis) -> bool {
        match axis {
            MeshAxis::Data => self.pipeline > 1 || self.tensor > 1,
            MeshAxis::Shard | MeshAxis::Replica => self.shard < self.data,
            MeshAxis::Pipeline => self.pipeline > 1,
            MeshAxis::Tensor => self.tensor > 1,
            MeshAxis::Context => self.context > 1,
            MeshAxis::Expert | MeshAxis::ExpertReplica => self.expert > 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_place_of_its_own() {
        let mesh = Mesh::of_stages(3, 1, 12).unwrap();
        assert_eq!(
            mesh,
            Mesh { data: 4, shard: 4, pipeline: 3, tensor: 1, context: 1, expert: 1, servers: 0 }
        );
        let places = (0..12)
            .map(|rank| [MeshAxis::Data, MeshAxis::Pipeline].map(|axis| mesh.position(rank, axis).index));
        assert!(places.zip(0..).all(|([data, stage], rank)| stage * 4 + data == rank));
        let sharded = mesh.sharded(2).unwrap();
        let parts =
            |rank| [MeshAxis::Shard, MeshAxis::Replica].map(|axis| sharded.position(rank, axis).index);
        assert_eq!([4, 5, 6, 7].map(parts), [[0, 0], [1, 0], [0, 1], [1, 1]]);
        let shared = Mesh::of_stages(3, 2, 12).unwrap();
        let axes = [MeshAxis::Tensor, MeshAxis::Data, MeshAxis::Pipeline];
        let places = |rank| axes.map(|axis| shared.position(rank, axis).index);
        assert_eq!(
            [0, 1, 2, 3, 4, 11].map(places),
            [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 1, 2]]
        );
        assert!(mesh.sharded(3).unwrap_err().to_string().contains("divisor of 4"));
        let error = Mesh::of_stages(5, 1, 12).unwrap_err().to_string();
        assert!(error.contains("5") && error.contains("divisor of 12"), "{error}");
    }
}
