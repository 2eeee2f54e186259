//! The communicators of a rank: one for each axis, and those that carry messages.

use super::{AxisPosition, Mesh, MeshAxis, ServingRole};
use crate::Result;
use allfold_collectives::Communicator;

/// A rank's communicators.
pub(super) struct Groups<'a> {
    pub world: &'a Communicator,
    mesh: Mesh,
    /// The data axis, where it is not the whole world.
    data: Option<Communicator>,
    /// The ranks that share one copy, and those that hold the same parts, where there are several copies.
    shard: Option<Communicator>,
    pub replicas: Option<Communicator>,
    /// The pipeline axis, where there is one.
    pub pipeline: Option<Communicator>,
    /// The tensor axis, where there is one.
    pub tensor: Option<Communicator>,
    /// The context axis, where there is one.
    context: Option<Communicator>,
    /// For each channel, a communicator that carries messages along the pipeline, or else along the data axis.
    messages: Vec<Communicator>,
}

impl<'a> Groups<'a> {
    /// Splits `world` along the axes of `mesh`, and makes `channels` communicators for messages. Every rank must call it.
    pub fn new(world: &'a Communicator, mesh: Mesh, channels: usize) -> Result<Groups<'a>> {
        let (data, shard, replicas, pipeline, tensor, context) = (None, None, None, None, None, None);
        let mut groups =
            Groups { world, mesh, data, shard, replicas, pipeline, tensor, context, messages: Vec::new() };
        if let Err(error) = groups.split(channels) {
            groups.abort(&error.to_string());
            return Err(error);
        }
        Ok(groups)
    }

    fn split(&mut self, channels: usize) -> Result<()> {
        let (world, mesh, rank) = (self.world, self.mesh, self.world.rank().index());
        let place = |axis| mesh.position(rank, axis).index as u32;
        let [data, pipeline, tensor] = [MeshAxis::Data, MeshAxis::Pipeline, MeshAxis::Tensor].map(place);
        if mesh.pipeline > 1 || mesh.tensor > 1 {
            self.data = world.split(Some(pipeline * mesh.tensor as u32 + tensor), data)?;
        }
        if mesh.pipeline > 1 {
            self.pipeline = world.split(Some(data * mesh.tensor as u32 + tensor), pipeline)?;
        }
        if mesh.tensor > 1 {
            self.tensor = world.split(Some(pipeline * mesh.data as u32 + data), tensor)?;
        }
        if mesh.shard < mesh.data {
            let [part, copy] = [MeshAxis::Shard, MeshAxis::Replica].map(place);
            self.shard = self.data().split(Some(copy), part)?;
            self.replicas = self.data().split(Some(part), copy)?;
        }
        if mesh.context > 1 {
            let place = mesh.position(rank, MeshAxis::Context).index as u32;
            self.context = self.data().split(Some(data / mesh.context as u32), place)?;
        }
        if mesh.servers > 0 {
            return self.split_workers();
        }
        // The messages of a pipeline go between ranks of equal places on the other axes.
        let line = if mesh.pipeline > 1 { data * mesh.tensor as u32 + tensor } else { 0 };
        for _ in 0..channels {
            self.messages.extend(world.split(Some(line), rank as u32)?);
        }
        Ok(())
    }

    /// Separates servers from workers, and makes a communicator of each worker and all servers.
    fn split_workers(&mut self) -> Result<()> {
        let (world, mesh, rank) = (self.world, self.mesh, self.world.rank().index());
        self.data = world.split(Some(u32::from(mesh.is_server(rank))), rank as u32)?;
        for worker in 0..mesh.data {
            let belongs = mesh.is_server(rank) || rank == mesh.servers + worker;
            self.messages.extend(world.split(belongs.then_some(0), rank as u32)?);
        }
        Ok(())
    }

    /// The servers and workers, and what this rank is.
    pub fn serving_role(&self) -> ServingRole {
        let (rank, mesh) = (self.world.rank().index(), self.mesh);
        let server = mesh.is_server(rank).then_some(rank);
        ServingRole { servers: mesh.servers, workers: mesh.data, server }
    }

    /// The ranks with samples of their own and the same layers.
    pub fn data(&self) -> &Communicator {
        self.data.as_ref().unwrap_or(self.world)
    }

    /// The ranks that share one copy of what is sharded.
    pub fn shard(&self) -> &Communicator {
        self.shard.as_ref().unwrap_or_else(|| self.data())
    }

    /// The communicator of an axis along which layers exchange values, where it has several ranks.
    pub fn along(&self, axis: MeshAxis) -> Option<&Communicator> {
        match axis {
            MeshAxis::Tensor => self.tensor.as_ref(),
            MeshAxis::Context => self.context.as_ref(),
            _ => None,
        }
    }

    /// Ends every group for the same reason: a rank that waits in another group than the one that failed hears of the cause.
    pub fn abort(&self, why: &str) {
        let groups = [&self.data, &self.shard, &self.replicas, &self.pipeline, &self.tensor, &self.context];
        let all = groups.into_iter().flatten().chain(&self.messages).chain([self.world]);
        all.for_each(|group| group.abort(why));
    }

    /// The communicator that carries the messages of a channel.
    pub fn channel(&self, channel: usize) -> Option<&Communicator> {
        self.messages.get(channel)
    }

    /// This rank's place on an axis.
    pub fn position(&self, axis: MeshAxis) -> AxisPosition {
        self.mesh.position(self.world.rank().index(), axis)
    }
}
