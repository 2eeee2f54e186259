//! The groups of a rank on a device: one for each axis of the mesh, and those that carry messages between stages.

use crate::engine::{Mesh, MeshAxis, MeshGroups, ParamUnit};
use crate::{Config, Error, Result};
use allfold_collectives::{Communicator, Rank};
use allfold_config::GpuExchange;
use allfold_cuda::Queue;
use allfold_gpu::device::{DeviceGroup, DeviceMessages, ReducePath};
use allfold_gpu_passes::AxisGroups;
use std::time::Duration;

/// A rank's groups.
pub(super) struct GpuGroups<'a> {
    /// All ranks.
    pub world: DeviceGroup<'a>,
    /// The ranks of each axis that [splits](Mesh::splits) the ranks, by the number of the axis; with servers, on the data axis, the ranks
    /// with this rank's role.
    axes: [Option<DeviceGroup<'a>>; MeshAxis::ALL.len()],
    /// The host's communicator of the ranks that share positions, if several do.
    pub context_host: Option<Communicator>,
    /// The host's communicator of the ranks that have parts of the parameters: of the tensor or of the expert axis.
    pub parts_host: Option<Communicator>,
    /// For each channel: the messages between stages, or between the first rank and those that compute for it.
    pub messages: Vec<DeviceMessages<'a>>,
    /// With servers: for each worker the messages between it and all servers, of parameters and of gradients. A worker has its own alone.
    pub serving: Vec<[DeviceMessages<'a>; 2]>,
    /// Whether some ranks compute on CPUs.
    mixes_devices: bool,
    /// The number of servers.
    pub servers: usize,
    /// For each unit that several stages hold, on those stages: their group.
    pub copies: Vec<Option<DeviceGroup<'a>>>,
    /// For each unit, the first stage that holds it.
    pub holders: Vec<Rank>,
}

/// How the groups of a rank are opened: each with a stream of its own, and all over one path.
#[derive(Clone, Copy)]
struct Opening<'o> {
    queue: &'o Queue,
    path: ReducePath,
    deadline: Duration,
}

impl Opening<'_> {
    /// A stream for sums and messages, which other ranks wait for: they come before this rank's computation.
    fn stream(self) -> Result<Queue> {
        Ok(Queue::urgent(self.queue.machine().clone(), self.queue.device())?.pooled())
    }

    /// The group of the ranks of a communicator that was split off, if this rank is among them.
    fn group<'a>(self, comm: Option<Communicator>) -> Result<Option<DeviceGroup<'a>>> {
        let Some(comm) = comm else { return Ok(None) };
        Ok(Some(DeviceGroup::open(comm, self.stream()?, self.path, self.deadline)?))
    }

    fn messages<'a>(self, comm: Communicator) -> Result<DeviceMessages<'a>> {
        Ok(DeviceMessages::open(comm, self.stream()?, self.path, self.deadline)?)
    }
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
        let way = match config.exchange {
            _ if config.mixes_devices() => ReducePath::Host,
            GpuExchange::Auto => ReducePath::Auto,
            GpuExchange::Nccl => ReducePath::Nccl,
            GpuExchange::Scheduled => ReducePath::Scheduled,
            GpuExchange::Device => ReducePath::Device,
            GpuExchange::Host => ReducePath::Host,
        };
        let world = DeviceGroup::open(comm, Opening { queue, path: way, deadline }.stream()?, way, deadline)?;
        let several = mesh.pipeline * mesh.tensor * mesh.context * mesh.expert > 1;
        if world.shares_gpu() && (several || mesh.shard < mesh.data || mesh.servers > 0) {
            let what = "ranks share a GPU, and the strategy needs several communicators of NCCL, whose kernels would wait for each other: give each rank a GPU, or set exchange = \"device\" or \"host\"";
            return Err(Error::Config(what.into()));
        }
        let (opening, rank) = (Opening { queue, path: world.path(), deadline }, comm.rank().index());
        let (axes, messages, stages) = MeshGroups::new(comm, *mesh, channels, specs)?.into_communicators();
        // The host exchanges on its own along these axes, while the device's group exchanges.
        let again = |axis: MeshAxis| axes[axis as usize].as_ref().map_or(Ok(None), alike);
        let context_host = again(MeshAxis::Context)?;
        let parts_host = match again(MeshAxis::Expert)? {
            None => again(MeshAxis::Tensor)?,
            experts => experts,
        };
        let mut stages = stages.into_iter();
        let held = specs.iter().map(|_| stages.next().unwrap_or((Rank(0), None)));
        let (holders, copies): (Vec<Rank>, Vec<_>) = held.unzip();
        let mut groups = GpuGroups {
            world,
            axes: Default::default(),
            context_host,
            parts_host,
            messages: Vec::new(),
            serving: Vec::new(),
            mixes_devices: config.mixes_devices(),
            servers: mesh.servers,
            copies: copies.into_iter().map(|comm| opening.group(comm)).collect::<Result<_>>()?,
            holders,
        };
        for ((own, comm), axis) in groups.axes.iter_mut().zip(axes).zip(MeshAxis::ALL) {
            let number = match axis {
                MeshAxis::Data if mesh.servers > 0 => usize::from(mesh.is_server(rank)),
                axis => mesh.group(rank, axis),
            };
            if let Some(comm) = comm {
                *own = Some(groups.world.split(comm, number as u32, opening.stream()?)?);
            }
        }
        for params in messages {
            match if mesh.servers > 0 { alike(&params)? } else { None } {
                Some(gradients) => {
                    groups.serving.push([opening.messages(params)?, opening.messages(gradients)?]);
                }
                None => groups.messages.push(opening.messages(params)?),
            }
        }
        Ok(groups)
    }

    /// The ranks of an axis; `None` where this rank is alone on the axis, or the axis has all ranks.
    pub fn along(&mut self, axis: MeshAxis) -> Option<&mut DeviceGroup<'a>> {
        self.axes[axis as usize].as_mut()
    }

    /// The ranks of the first of these axes that has a group of its own, else all ranks.
    fn first_of(&mut self, axes: &[MeshAxis]) -> &mut DeviceGroup<'a> {
        let axis = axes.iter().find(|axis| self.axes[**axis as usize].is_some());
        axis.and_then(|axis| self.axes[*axis as usize].as_mut()).unwrap_or(&mut self.world)
    }

    /// The ranks that share what is sharded: of parameters of some experts, or of others.
    pub fn sharers(&mut self, some_experts: bool) -> &mut DeviceGroup<'a> {
        self.first_of(
            &[MeshAxis::ExpertReplica, MeshAxis::Shard, MeshAxis::Data][usize::from(!some_experts)..],
        )
    }

    /// The ranks that hold the same parameters: of some experts, or others.
    pub fn param_holders(&mut self, some_experts: bool) -> &mut DeviceGroup<'a> {
        self.first_of(&[MeshAxis::ExpertReplica, MeshAxis::Data][usize::from(!some_experts)..])
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
        self.param_holders(false)
    }

    /// The groups over which layers exchange values.
    pub fn axes(&mut self) -> AxisGroups<'_, 'a> {
        let GpuGroups { world, axes: [data, _, _, _, tensor, context, experts, _], .. } = self;
        AxisGroups {
            data: data.as_mut().unwrap_or(world),
            tensor: tensor.as_mut(),
            context: context.as_mut(),
            experts: experts.as_mut(),
        }
    }

    /// Whether ranks of the tensor axis share layers, and this one is not the first of them.
    pub fn is_further_part(&self) -> bool {
        self.axes[MeshAxis::Tensor as usize].as_ref().is_some_and(|tensor| tensor.rank() != Rank(0))
    }

    /// Whether all exchanges are queued without waiting, so that a part of a step can be captured.
    pub fn captures(&self) -> bool {
        self.world.captures() && self.axes[MeshAxis::Pipeline as usize].is_none() && self.serving.is_empty()
    }

    /// The path by which all ranks sum, in words, and why; `None` for a single rank.
    pub fn exchange(&self) -> Option<String> {
        match self.mixes_devices {
            true => Some("the host: some ranks compute on CPUs".into()),
            false => self.world.described(),
        }
    }

    /// Waits until `queue` has finished all its work; polls NCCL for failures on the communicators of all groups.
    pub fn wait(&mut self, queue: &Queue, what: &str) -> Result<()> {
        let GpuGroups { world, axes, messages, serving, copies, .. } = self;
        let mut others: Vec<&mut DeviceGroup<'a>> = axes.iter_mut().chain(copies).flatten().collect();
        let mut messages: Vec<_> = messages.iter_mut().chain(serving.iter_mut().flatten()).collect();
        world.wait_watching(queue, what, &mut || {
            others.iter_mut().try_for_each(|group| group.poll(what))?;
            messages.iter_mut().try_for_each(|messages| messages.poll(what))
        })?;
        others.iter_mut().for_each(|group| group.settled());
        messages.iter_mut().for_each(|messages| messages.settled());
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = &DeviceGroup<'a>> {
        [&self.world].into_iter().chain(self.axes.iter().chain(&self.copies).flatten())
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

    /// Ends this rank's part in all exchanges under way, and reports the reason to the other ranks of its groups.
    pub fn abandon(&mut self, why: &str) {
        let GpuGroups { world, axes, messages, serving, copies, .. } = self;
        let all = [world].into_iter().chain(axes.iter_mut().chain(copies).flatten());
        all.for_each(|group| group.abandon(why));
        [&self.parts_host, &self.context_host].into_iter().flatten().for_each(|host| host.abort(why));
        let messages = messages.iter_mut().chain(serving.iter_mut().flatten());
        messages.for_each(|messages| messages.abandon(why));
    }
}

/// A communicator of the same ranks, for other messages.
fn alike(comm: &Communicator) -> Result<Option<Communicator>> {
    Ok(comm.split(Some(0), comm.rank().0)?)
}
