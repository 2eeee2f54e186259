//! The groups of a rank on a device: one for each axis of the mesh, and those that carry messages between stages.

use crate::engine::{Keep, Mesh, MeshAxis, ParamUnit};
use crate::{Config, Result};
use allfold_collectives::{Communicator, Rank};
use allfold_cuda::Queue;
use allfold_gpu::device::{DeviceGroup, DeviceMessages, ReducePath};
use allfold_gpu_passes::AxisGroups;
use std::time::Duration;

/// A rank's groups.
pub(super) struct GpuGroups<'a> {
    /// All ranks.
    pub world: DeviceGroup<'a>,
    /// The ranks of the data axis, unless they are all ranks.
    data: Option<DeviceGroup<'a>>,
    /// If there are several copies of what is sharded: the ranks that share a copy, and those that hold the same part of each.
    shard: Option<DeviceGroup<'a>>,
    pub replicas: Option<DeviceGroup<'a>>,
    /// The stages of the pipeline, if there is one.
    pub pipeline: Option<DeviceGroup<'a>>,
    /// The ranks that share layers, if several do.
    pub tensor: Option<DeviceGroup<'a>>,
    /// The ranks that share positions, if several do; and the same ranks' communicator on the host.
    context: Option<DeviceGroup<'a>>,
    pub context_host: Option<Communicator>,
    /// If several ranks share experts: these ranks, and those that hold the same experts.
    experts: Option<DeviceGroup<'a>>,
    expert_replicas: Option<DeviceGroup<'a>>,
    /// The host's communicator of the ranks that have parts of the parameters: of the tensor or of the expert axis.
    pub parts_host: Option<Communicator>,
    /// For each channel: the messages between stages, or between the first rank and those that compute for it.
    pub messages: Vec<DeviceMessages<'a>>,
    /// With servers: for each worker the messages between it and all servers, of parameters and of gradients. A worker has its own alone.
    pub serving: Vec<[DeviceMessages<'a>; 2]>,
    /// The number of servers.
    pub servers: usize,
    /// For each unit that several stages hold, on those stages: their group.
    pub copies: Vec<Option<DeviceGroup<'a>>>,
    /// For each unit, the first stage that holds it.
    pub holders: Vec<Rank>,
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
            shard: None,
            replicas: None,
            pipeline: None,
            tensor: None,
            context: None,
            context_host: None,
            experts: None,
            expert_replicas: None,
            parts_host: None,
            messages: Vec::new(),
            serving: Vec::new(),
            servers: mesh.servers,
            copies: specs.iter().map(|_| None).collect(),
            holders: vec![Rank(0); specs.len()],
        };
        let rank = comm.rank().index();
        if mesh.shard < mesh.data {
            groups.shard(comm, mesh, (queue, deadline))?;
        }
        groups.share_samples(comm, mesh, (queue, deadline))?;
        if mesh.servers > 0 {
            groups.separate_servers(comm, mesh, (queue, deadline))?;
            return Ok(groups);
        }
        if mesh.pipeline == 1 && mesh.tensor == 1 {
            groups.open_channels(comm, (channels, 0), (queue, deadline))?;
            return Ok(groups);
        }
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
            groups.parts_host = comm.split(Some(column), tensor)?;
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
        groups.open_channels(comm, (channels, data * tensors + tensor), (queue, deadline))?;
        Ok(groups)
    }

    /// Opens channels for messages between the ranks of `comm` with an equal `line`.
    fn open_channels(
        &mut self,
        comm: &Communicator,
        (channels, line): (usize, u32),
        (queue, deadline): (&Queue, Duration),
    ) -> Result<()> {
        for _ in 0..channels {
            if let Some(line) = comm.split(Some(line), comm.rank().0)? {
                let stream = Queue::new(queue.machine().clone(), queue.device())?.pooled();
                self.messages.push(DeviceMessages::open(line, stream, self.world.path(), deadline)?);
            }
        }
        Ok(())
    }

    /// Splits the ranks of the data axis into those that share a copy and those that hold the same part.
    fn shard(
        &mut self,
        comm: &Communicator,
        mesh: &Mesh,
        (queue, deadline): (&Queue, Duration),
    ) -> Result<()> {
        let rank = comm.rank().index();
        let places = [MeshAxis::Pipeline, MeshAxis::Tensor, MeshAxis::Shard, MeshAxis::Replica];
        let [stage, tensor, part, copy] = places.map(|axis| mesh.position(rank, axis).index as u32);
        let column = stage * mesh.tensor as u32 + tensor;
        let all = mesh.data as u32;
        let open = |color: u32, key: u32| -> Result<Option<DeviceGroup<'a>>> {
            let Some(comm) = comm.split(Some(column * all + color), key)? else { return Ok(None) };
            let stream = Queue::new(queue.machine().clone(), queue.device())?.pooled();
            Ok(Some(DeviceGroup::open(comm, stream, self.world.path(), deadline)?))
        };
        (self.shard, self.replicas) = (open(copy, part)?, open(part, copy)?);
        Ok(())
    }

    /// Separates servers from workers, and opens the messages between each worker and all servers.
    fn separate_servers(
        &mut self,
        comm: &Communicator,
        mesh: &Mesh,
        (queue, deadline): (&Queue, Duration),
    ) -> Result<()> {
        let stream = || Ok::<_, crate::Error>(Queue::new(queue.machine().clone(), queue.device())?.pooled());
        let (rank, path) = (comm.rank().index(), self.world.path());
        let serves = mesh.is_server(rank);
        if let Some(data) = comm.split(Some(u32::from(serves)), comm.rank().0)? {
            self.data = Some(DeviceGroup::open(data, stream()?, path, deadline)?);
        }
        for worker in 0..mesh.data {
            let belongs = (serves || rank == mesh.servers + worker).then_some(0);
            let params = comm.split(belongs, comm.rank().0)?;
            let gradients = comm.split(belongs, comm.rank().0)?;
            if let (Some(params), Some(gradients)) = (params, gradients) {
                let open =
                    |comm| DeviceMessages::open(comm, stream()?, path, deadline).map_err(crate::Error::from);
                self.serving.push([open(params)?, open(gradients)?]);
            }
        }
        Ok(())
    }

    /// Splits the ranks of the data axis into those that share positions, or experts.
    fn share_samples(
        &mut self,
        comm: &Communicator,
        mesh: &Mesh,
        (queue, deadline): (&Queue, Duration),
    ) -> Result<()> {
        let rank = comm.rank().index();
        let places =
            [MeshAxis::Pipeline, MeshAxis::Tensor, MeshAxis::Data].map(|axis| mesh.position(rank, axis));
        let [stage, tensor, data] = places.map(|place| place.index as u32);
        let column = (stage * mesh.tensor as u32 + tensor) * mesh.data as u32;
        let split = |color: usize, key: usize| comm.split(Some(column + color as u32), key as u32);
        let open = |comm: Option<Communicator>| -> Result<Option<DeviceGroup<'a>>> {
            let Some(comm) = comm else { return Ok(None) };
            let stream = Queue::new(queue.machine().clone(), queue.device())?.pooled();
            Ok(Some(DeviceGroup::open(comm, stream, self.world.path(), deadline)?))
        };
        if mesh.context > 1 {
            let (samples, own) = (data as usize / mesh.context, data as usize % mesh.context);
            self.context = open(split(samples, own)?)?;
            self.context_host = split(samples, own)?;
        }
        if mesh.expert > 1 {
            let [part, copy] =
                [MeshAxis::Expert, MeshAxis::ExpertReplica].map(|axis| mesh.position(rank, axis).index);
            self.experts = open(split(copy, part)?)?;
            self.expert_replicas = open(split(part, copy)?)?;
            self.parts_host = split(copy, part)?;
        }
        Ok(())
    }

    /// The ranks that share what is sharded: of parameters of some experts, or of others.
    pub fn sharers(&mut self, some_experts: bool) -> &mut DeviceGroup<'a> {
        let experts = self.expert_replicas.as_mut().filter(|_| some_experts);
        experts.or(self.shard.as_mut()).or(self.data.as_mut()).unwrap_or(&mut self.world)
    }

    /// The ranks that hold the same parameters: of some experts, or others.
    pub fn param_holders(&mut self, some_experts: bool) -> &mut DeviceGroup<'a> {
        let experts = self.expert_replicas.as_mut().filter(|_| some_experts);
        experts.or(self.data.as_mut()).unwrap_or(&mut self.world)
    }

    /// Makes `queue` wait for all sums and gathers of the data axis.
    pub fn join_data(&mut self, queue: &Queue) -> Result<()> {
        for some_experts in [false, true] {
            self.sharers(some_experts).join(queue)?;
            self.param_holders(some_experts).join(queue)?;
        }
        Ok(())
    }

    /// The ranks that hold the same layers and have samples of their own.
    pub fn data(&mut self) -> &mut DeviceGroup<'a> {
        self.data.as_mut().unwrap_or(&mut self.world)
    }

    /// The groups over which layers exchange values.
    pub fn axes(&mut self) -> AxisGroups<'_, 'a> {
        let GpuGroups { world, data, tensor, context, experts, .. } = self;
        AxisGroups {
            data: data.as_mut().unwrap_or(world),
            tensor: tensor.as_mut(),
            context: context.as_mut(),
            experts: experts.as_mut(),
        }
    }

    /// Whether ranks of the tensor axis share layers, and this one is not the first of them.
    pub fn is_further_part(&self) -> bool {
        self.tensor.as_ref().is_some_and(|tensor| tensor.rank() != Rank(0))
    }

    /// Whether all exchanges are queued without waiting, so that a part of a step can be captured.
    pub fn captures(&self) -> bool {
        self.world.captures() && self.pipeline.is_none() && self.serving.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &DeviceGroup<'a>> {
        let GpuGroups { world, data, shard, replicas, pipeline, tensor, copies, .. } = self;
        let shared = [&self.context, &self.experts, &self.expert_replicas];
        let some =
            [data, shard, replicas, pipeline, tensor].into_iter().chain(shared).chain(copies).flatten();
        [world].into_iter().chain(some)
    }

    /// The queues of the streams of all groups.
    pub fn queues(&self) -> impl Iterator<Item = &Queue> {
        let messages = self.messages.iter().chain(self.serving.iter().flatten());
        self.all().map(DeviceGroup::queue).chain(messages.map(DeviceMessages::queue))
    }

    /// Whether kernels of another rank may still use this rank's memory.
    pub fn is_lent(&self) -> bool {
        self.all().any(DeviceGroup::is_lent)
    }

    /// Ends this rank's part in all exchanges under way, and tells the other ranks of its own groups why.
    pub fn abandon(&mut self, why: &str) {
        let GpuGroups { world, data, shard, replicas, pipeline, tensor, messages, serving, copies, .. } =
            self;
        let shared = [&mut self.context, &mut self.experts, &mut self.expert_replicas];
        let some =
            [data, shard, replicas, pipeline, tensor].into_iter().chain(shared).chain(copies).flatten();
        [world].into_iter().chain(some).for_each(|group| group.abandon(why));
        [&self.parts_host, &self.context_host].into_iter().flatten().for_each(|host| host.abort(why));
        let messages = messages.iter_mut().chain(serving.iter_mut().flatten());
        messages.for_each(|messages| messages.abandon(why));
    }
}
