//! The groups of a rank on a device: one for each axis of the mesh, and those that carry messages between stages.

use crate::engine::{Keep, Mesh, MeshAxis, ParamUnit};
use crate::{Config, Result};
use allfold_collectives::{Communicator, Rank};
use allfold_gpu::device::{DeviceGroup, DeviceMessages, ReducePath};
use allfold_kernels::cuda::Queue;
use std::time::Duration;

/// A rank's groups.
pub(super) struct GpuGroups<'a> {
    /// All ranks.
    pub world: DeviceGroup<'a>,
    /// The ranks of the data axis, unless they are all ranks.
    data: Option<DeviceGroup<'a>>,
    /// The stages of the pipeline, if there is one.
    pub pipeline: Option<DeviceGroup<'a>>,
    /// The ranks that share layers, if several do; and the same ranks' communicator on the host.
    pub tensor: Option<DeviceGroup<'a>>,
    pub tensor_host: Option<Communicator>,
    /// For each channel: the messages between stages.
    pub messages: Vec<DeviceMessages<'a>>,
    /// For each unit that several stages hold, on those stages: their group.
    pub copies: Vec<Option<DeviceGroup<'a>>>,
    /// For each unit, the first stage that holds it.
    pub holders: Vec<Rank>,
}

/// The groups of a rank's axes.
pub(super) struct Axes<'g, 'a> {
    pub data: &'g mut DeviceGroup<'a>,
    pub pipeline: Option<&'g mut DeviceGroup<'a>>,
    pub tensor: Option<&'g mut DeviceGroup<'a>>,
}

impl<'a> GpuGroups<'a> {
    /// The groups of a rank of `mesh` that keeps `specs`, with `channels` channels, on the device of `queue`. Every rank must call it.
    pub fn open(
        config: &Config,
        comm: &'a Communicator,
        (mesh, channels): (&Mesh, usize),
        specs: &[ParamUnit],
        (queue, deadline): (&Queue, Duration),
    ) -> Result<GpuGroups<'a>> {
        let stream = || Ok::<_, crate::Error>(Queue::new(queue.machine().clone(), queue.device())?.pooled());
        let way = match config.mixes_devices() {
            true => ReducePath::Host,
            false => ReducePath::named(&config.exchange).unwrap_or_default(),
        };
        let world = DeviceGroup::open(comm, stream()?, way, deadline)?;
        let path = world.path();
        let mut groups = GpuGroups {
            world,
            data: None,
            pipeline: None,
            tensor: None,
            tensor_host: None,
            messages: Vec::new(),
            copies: specs.iter().map(|_| None).collect(),
            holders: vec![Rank(0); specs.len()],
        };
        if mesh.pipeline == 1 && mesh.tensor == 1 {
            return Ok(groups);
        }
        let rank = comm.rank().index();
        let place = |axis| mesh.position(rank, axis).index as u32;
        let [data, stage, tensor] = [MeshAxis::Data, MeshAxis::Pipeline, MeshAxis::Tensor].map(place);
        let (tensors, column) = (mesh.tensor as u32, stage * mesh.data as u32 + data);
        let open = |comm: Option<Communicator>| {
            comm.map(|comm| DeviceGroup::open(comm, stream()?, path, deadline).map_err(crate::Error::from))
                .transpose()
        };
        groups.data = open(comm.split(Some(stage * tensors + tensor), data)?)?;
        if mesh.tensor > 1 {
            groups.tensor = open(comm.split(Some(column), tensor)?)?;
            groups.tensor_host = comm.split(Some(column), tensor)?;
        }
        if mesh.pipeline == 1 {
            return Ok(groups);
        }
        let line = comm.split(Some(data * tensors + tensor), stage)?;
        for (at, unit) in specs.iter().enumerate() {
            let Some(line) = &line else { continue };
            let held = unit.keep != Keep::Nothing;
            let mut holders = vec![0i64; mesh.pipeline];
            line.all_gather(&[i64::from(held)], &mut holders)?;
            let first = holders.iter().position(|held| *held == 1).unwrap_or_default();
            groups.holders[at] = Rank(first as u32);
            if holders.iter().sum::<i64>() > 1 {
                groups.copies[at] = open(line.split(held.then_some(0), stage)?)?;
            }
        }
        groups.pipeline = open(line)?;
        for _ in 0..channels {
            if let Some(line) = comm.split(Some(data * tensors + tensor), rank as u32)? {
                groups.messages.push(DeviceMessages::open(line, stream()?, path, deadline)?);
            }
        }
        Ok(groups)
    }

    /// The ranks that hold the same layers and have samples of their own.
    pub fn data(&mut self) -> &mut DeviceGroup<'a> {
        self.data.as_mut().unwrap_or(&mut self.world)
    }

    /// The groups of the data axis, of the pipeline and of the tensor axis.
    pub fn axes(&mut self) -> Axes<'_, 'a> {
        let GpuGroups { world, data, pipeline, tensor, .. } = self;
        Axes { data: data.as_mut().unwrap_or(world), pipeline: pipeline.as_mut(), tensor: tensor.as_mut() }
    }

    /// Whether ranks of the tensor axis share layers, and this one is not the first of them.
    pub fn is_further_part(&self) -> bool {
        self.tensor.as_ref().is_some_and(|tensor| tensor.rank() != Rank(0))
    }

    /// Whether all exchanges are queued without waiting, so that a part of a step can be captured.
    pub fn captures(&self) -> bool {
        self.world.captures() && self.pipeline.is_none()
    }

    fn all(&self) -> impl Iterator<Item = &DeviceGroup<'a>> {
        let copies = self.copies.iter().flatten();
        [&self.world].into_iter().chain(&self.data).chain(&self.pipeline).chain(&self.tensor).chain(copies)
    }

    /// The queues of the streams of all groups.
    pub fn queues(&self) -> impl Iterator<Item = &Queue> {
        self.all().map(DeviceGroup::queue).chain(self.messages.iter().map(DeviceMessages::queue))
    }

    /// Whether kernels of another rank may still use this rank's memory.
    pub fn is_lent(&self) -> bool {
        self.all().any(DeviceGroup::is_lent)
    }

    /// Ends this rank's part in all exchanges under way, and tells the other ranks of its own groups why.
    pub fn abandon(&mut self, why: &str) {
        let GpuGroups { world, data, pipeline, tensor, tensor_host, messages, copies, .. } = self;
        let copies = copies.iter_mut().flatten();
        for group in [world].into_iter().chain(data).chain(pipeline).chain(tensor).chain(copies) {
            group.abandon(why);
        }
        if let Some(host) = tensor_host {
            host.abort(why);
        }
        messages.iter_mut().for_each(|messages| messages.abandon(why));
    }
}
