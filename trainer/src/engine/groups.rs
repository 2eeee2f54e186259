//! The communicators of a rank: one for each axis, and those that carry messages.

use super::{Keep, Mesh, MeshAxis, ParamUnit};
use crate::Result;
use allfold_collectives::{Communicator, Rank};

/// A rank's communicators: those of the axes of its mesh, and those that carry messages.
pub struct MeshGroups<'a> {
    pub(super) world: &'a Communicator,
    /// The communicator of each axis that [splits](Mesh::splits) the ranks, by the number of the axis; with servers, on the data axis,
    /// that of the ranks with this rank's role.
    axes: [Option<Communicator>; MeshAxis::ALL.len()],
    /// Communicators for messages: for each channel, one along the pipeline or else of all ranks; with servers, one per worker.
    messages: Vec<Communicator>,
    /// In a pipeline, for each unit: the first stage that holds it, and on stages that hold it with others, their communicator.
    stages: Vec<(Rank, Option<Communicator>)>,
}

/// The communicators of [`MeshGroups`], each of the ranks that it says.
#[cfg(feature = "cuda")]
pub(crate) type Communicators =
    ([Option<Communicator>; MeshAxis::ALL.len()], Vec<Communicator>, Vec<(Rank, Option<Communicator>)>);

/// Separates the servers of `mesh` from its workers, and makes a communicator of each worker and all servers. Returns the
/// communicator of the ranks with this rank's role (server or worker), and the communicators of workers: on a server those of all
/// workers, on a worker its own.
fn split_workers(world: &Communicator, mesh: &Mesh) -> Result<(Option<Communicator>, Vec<Communicator>)> {
    let rank = world.rank().index();
    let alike = world.split(Some(u32::from(mesh.is_server(rank))), rank as u32)?;
    let mut messages = Vec::new();
    for worker in 0..mesh.data {
        let belongs = mesh.is_server(rank) || rank == mesh.servers + worker;
        messages.extend(world.split(belongs.then_some(0), rank as u32)?);
    }
    Ok((alike, messages))
}

impl<'a> MeshGroups<'a> {
    /// Splits `world` along the axes of `mesh`, and makes `channels` communicators for messages, and those of the stages that hold the
    /// same of this rank's `units`. Every rank must call it.
    ///
    /// # Errors
    /// Failed communication.
    pub fn new(
        world: &'a Communicator,
        mesh: Mesh,
        channels: usize,
        units: &[ParamUnit],
    ) -> Result<MeshGroups<'a>> {
        let (axes, messages, stages) = (Default::default(), Vec::new(), Vec::new());
        let mut groups = MeshGroups { world, axes, messages, stages };
        if let Err(error) = groups.split(mesh, channels, units) {
            groups.abort(&error.to_string());
            return Err(error);
        }
        Ok(groups)
    }

    fn split(&mut self, mesh: Mesh, channels: usize, units: &[ParamUnit]) -> Result<()> {
        let (world, rank) = (self.world, self.world.rank().index());
        for axis in MeshAxis::ALL.into_iter().filter(|axis| mesh.splits(*axis)) {
            let all = match axis {
                MeshAxis::Data | MeshAxis::Pipeline | MeshAxis::Tensor => world,
                _ => self.data(),
            };
            let place = mesh.position(rank, axis).index;
            self.axes[axis as usize] = all.split(Some(mesh.group(rank, axis) as u32), place as u32)?;
        }
        if mesh.servers > 0 {
            (self.axes[MeshAxis::Data as usize], self.messages) = split_workers(world, &mesh)?;
            return Ok(());
        }
        // The messages of a pipeline go between ranks that have the same positions on the other axes.
        let line = if mesh.pipeline > 1 { mesh.group(rank, MeshAxis::Pipeline) } else { 0 };
        for _ in 0..channels {
            self.messages.extend(world.split(Some(line as u32), rank as u32)?);
        }
        if let Some(pipeline) = self.along(MeshAxis::Pipeline) {
            self.stages = copies_of(pipeline, units)?;
        }
        Ok(())
    }

    /// The communicator of the data axis: the ranks that hold the same layers and have samples, or positions of them, of their own.
    pub fn data(&self) -> &Communicator {
        self.axes[MeshAxis::Data as usize].as_ref().unwrap_or(self.world)
    }

    /// The ranks that share one copy of what is sharded.
    pub fn shard(&self) -> &Communicator {
        self.axes[MeshAxis::Shard as usize].as_ref().unwrap_or_else(|| self.data())
    }

    /// The communicator of an axis; `None` where this rank is alone on the axis, except for the data axis.
    pub fn along(&self, axis: MeshAxis) -> Option<&Communicator> {
        match axis {
            MeshAxis::Data => Some(self.data()),
            MeshAxis::Shard => Some(self.shard()),
            axis => self.axes[axis as usize].as_ref(),
        }
    }

    /// The communicators of the axes, those that carry messages, and those of the stages that hold the same units.
    #[cfg(feature = "cuda")]
    pub(crate) fn into_communicators(self) -> Communicators {
        (self.axes, self.messages, self.stages)
    }

    /// The ranks along an axis; those of the data axis where this rank is alone on the axis.
    pub(super) fn group(&self, axis: MeshAxis) -> &Communicator {
        self.along(axis).unwrap_or_else(|| self.data())
    }

    /// The ranks of all axes.
    pub fn world(&self) -> &Communicator {
        self.world
    }

    /// The communicator of the stages that hold a unit, if this one does and is not alone.
    pub fn copies(&self, unit: usize) -> Option<&Communicator> {
        self.stages.get(unit).and_then(|(_, copies)| copies.as_ref())
    }

    /// The first stage that holds a unit.
    pub(super) fn holder(&self, unit: usize) -> Rank {
        self.stages.get(unit).map_or(Rank(0), |(first, _)| *first)
    }

    /// Fails every group for the same reason, so that a rank that waits in another group than the failed one learns the cause.
    pub fn abort(&self, why: &str) {
        let copies = self.stages.iter().filter_map(|(_, copies)| copies.as_ref());
        let all = self.axes.iter().flatten().chain(&self.messages).chain(copies).chain([self.world]);
        all.for_each(|group| group.abort(why));
    }

    /// The communicator that carries the messages of a channel.
    pub fn channel(&self, channel: usize) -> Option<&Communicator> {
        self.messages.get(channel)
    }
}

/// For each unit, the first stage of `line` that holds it; and where several stages hold it, on these stages their communicator. `units`
/// are those of this rank. Every stage must call it.
fn copies_of(line: &Communicator, units: &[ParamUnit]) -> Result<Vec<(Rank, Option<Communicator>)>> {
    let copies = |unit: &ParamUnit| {
        let held = unit.keep != Keep::Nothing;
        let mut holders = vec![0i64; line.size() as usize];
        line.all_gather(&[i64::from(held)], &mut holders)?;
        let first = holders.iter().position(|held| *held == 1).unwrap_or_default();
        Ok((
            Rank(first as u32),
            match holders.iter().sum::<i64>() > 1 {
                true => line.split(held.then_some(0), line.rank().0)?,
                false => None,
            },
        ))
    };
    units.iter().map(copies).collect()
}
