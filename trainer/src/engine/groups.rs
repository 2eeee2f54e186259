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
        let rank = world.rank().index();
        let [data, pipeline] = [MeshAxis::Data, MeshAxis::Pipeline].map(|axis| mesh.position(rank, axis));
        let mut groups = Groups {
            world,
            mesh,
            data: None,
            shard: None,
            replicas: None,
            pipeline: None,
            messages: Vec::new(),
        };
        if mesh.pipeline > 1 {
            groups.data = world.split(Some(pipeline.index as u32), data.index as u32)?;
            groups.pipeline = world.split(Some(data.index as u32), pipeline.index as u32)?;
        }
        if mesh.shard < mesh.data {
            let [part, copy] =
                [MeshAxis::Shard, MeshAxis::Replica].map(|axis| mesh.position(rank, axis).index as u32);
            groups.shard = groups.data().split(Some(copy), part)?;
            groups.replicas = groups.data().split(Some(part), copy)?;
        }
        let line = if mesh.pipeline > 1 { data.index as u32 } else { 0 };
        for _ in 0..channels {
            groups.messages.extend(world.split(Some(line), rank as u32)?);
        }
        Ok(groups)
    }

    /// The ranks with samples of their own and the same layers.
    pub fn data(&self) -> &Communicator {
        self.data.as_ref().unwrap_or(self.world)
    }

    /// The ranks that share one copy of what is sharded.
    pub fn shard(&self) -> &Communicator {
        self.shard.as_ref().unwrap_or_else(|| self.data())
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
