//! The communicators of a rank: one for each axis, and those that carry messages.

use super::{AxisPosition, Mesh, MeshAxis};
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
    /// For each channel, a communicator that carries messages along the pipeline, or else along the data axis.
    messages: Vec<Communicator>,
}

impl<'a> Groups<'a> {
    /// Splits `world` along the axes of `mesh`, and makes `channels` communicators for messages. Every rank must call it.
    pub fn new(world: &'a Communicator, mesh: Mesh, channels: usize) -> Result<Groups<'a>> {
        let (data, shard, replicas, pipeline, messages) = (None, None, None, None, Vec::new());
        let mut groups = Groups { world, mesh, data, shard, replicas, pipeline, messages };
        if let Err(error) = groups.split(channels) {
            groups.abort(&error.to_string());
            return Err(error);
        }
        Ok(groups)
    }

    fn split(&mut self, channels: usize) -> Result<()> {
        let (world, mesh, rank) = (self.world, self.mesh, self.world.rank().index());
        let place = |axis| mesh.position(rank, axis).index as u32;
        let [data, pipeline] = [MeshAxis::Data, MeshAxis::Pipeline].map(place);
        if mesh.pipeline > 1 {
            self.data = world.split(Some(pipeline), data)?;
            self.pipeline = world.split(Some(data), pipeline)?;
        }
        if mesh.shard < mesh.data {
            let [part, copy] = [MeshAxis::Shard, MeshAxis::Replica].map(place);
            self.shard = self.data().split(Some(copy), part)?;
            self.replicas = self.data().split(Some(part), copy)?;
        }
        let line = if mesh.pipeline > 1 { data } else { 0 };
        for _ in 0..channels {
            self.messages.extend(world.split(Some(line), rank as u32)?);
        }
        Ok(())
    }

    /// The ranks with samples of their own and the same layers.
    pub fn data(&self) -> &Communicator {
        self.data.as_ref().unwrap_or(self.world)
    }

    /// The ranks that share one copy of what is sharded.
    pub fn shard(&self) -> &Communicator {
        self.shard.as_ref().unwrap_or_else(|| self.data())
    }

    /// Ends every group for the same reason: a rank that waits in another group than the one that failed hears of the cause.
    pub fn abort(&self, why: &str) {
        let groups = [&self.data, &self.shard, &self.replicas, &self.pipeline];
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
