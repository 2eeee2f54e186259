//! Exchanges of ranks that are all stepped: messages without contents, over the links of a [`World`](allfold_collectives::World) on
//! virtual time, whose clock follows a rank's before each of its operations. The exchanges slow each other as in a run.

use super::Queue;
use super::buffers::ClockBuffer;
use allfold_collectives::{Buffer, Collective, Communicator, DType, Rank, Work};
use allfold_sim::Picos;
use allfold_trainer::engine::{Keep, Mesh, MeshAxis, MeshGroups, ParamUnit, Route};
use allfold_trainer::{Error, Result};

/// A message between a server and a worker that is under way, with its buffer if the sizes of tensors are known.
pub(super) struct ServingMessage {
    pub work: Work<Buffer<u8>>,
    pub buffer: Option<ClockBuffer>,
}

/// The communicators of a rank, and the messages of a parameter server that are under way.
pub(crate) struct WorldLinks<'a> {
    groups: MeshGroups<'a>,
    /// For each unit that several stages hold, on those stages: their communicator.
    copies: Vec<Option<Communicator>>,
    /// On a worker: for each unit, its parameters from each server; and the messages that the worker sent.
    pub(super) pulls: Vec<Vec<ServingMessage>>,
    pub(super) sent: Vec<ServingMessage>,
    /// On a server, for each worker: the gradients of units expected of the worker, and the parameters sent to the worker.
    pub(super) expected: Vec<Vec<(usize, ServingMessage)>>,
    pub(super) served: Vec<Vec<ServingMessage>>,
}

impl<'a> WorldLinks<'a> {
    /// Splits `world` along the axes of `mesh`, with this many communicators for messages; `specs` are the units of each rank. Every
    /// rank must call it.
    pub fn new(
        world: &'a Communicator,
        (mesh, channels): (Mesh, usize),
        specs: &[Vec<ParamUnit>],
    ) -> Result<WorldLinks<'a>> {
        let groups = MeshGroups::new(world, mesh, channels)?;
        let stage = mesh.position(world.rank().index(), MeshAxis::Pipeline).index;
        let holds = |stage: usize, unit: usize| specs[mesh.first_of_stage(stage)][unit].keep != Keep::Nothing;
        let of_stages = |unit: usize| match (0..mesh.pipeline).filter(|stage| holds(*stage, unit)).count() {
            0 | 1 => Ok(None),
            _ => groups.split_stages(holds(stage, unit)),
        };
        let units = specs.first().map_or(0, Vec::len);
        let copies = (0..units).map(of_stages).collect::<Result<_>>()?;
        let (pulls, sent) = ((0..units).map(|_| Vec::new()).collect(), Vec::new());
        let expected = (0..mesh.data).map(|_| Vec::new()).collect();
        let served = (0..mesh.data).map(|_| Vec::new()).collect();
        Ok(WorldLinks { groups, copies, pulls, sent, expected, served })
    }

    pub fn now(&self) -> Picos {
        self.groups.world().now()
    }

    /// Notes the step of the rank, for its flight record.
    pub fn note_step(&self, step: u64) {
        self.groups.world().note_step(step);
    }

    /// Sets the clock of the links to that of their rank, which does nothing else meanwhile.
    pub fn follow(&self, now: Picos) {
        self.groups.world().advance(Picos(now.0.saturating_sub(self.now().0)));
    }

    fn group(&self, queue: Queue) -> Result<&Communicator> {
        let group = match queue {
            Queue::World => Some(self.groups.world()),
            Queue::Along(axis) => self.groups.along(axis),
            Queue::Copies(unit) => self.copies[unit].as_ref(),
        };
        group.ok_or_else(|| Error::Strategy(format!("a collective of a rank that is alone in {queue:?}")))
    }

    /// Starts a collective after those that its communicator has not done yet.
    pub fn collective(
        &self,
        queue: Queue,
        collective: Collective,
        (count, dtype): (usize, DType),
    ) -> Result<Work<Buffer<u8>>> {
        Ok(self.group(queue)?.collective_length_async(collective, count, dtype)?)
    }

    /// Runs a collective. Returns when it is done.
    pub fn run_collective(
        &self,
        queue: Queue,
        collective: Collective,
        (count, dtype): (usize, DType),
    ) -> Result<Picos> {
        self.group(queue)?.collective_length(collective, count, dtype)?;
        Ok(self.now())
    }

    /// Sends a message of `bytes` bytes along a route, or receives one.
    pub fn message(&self, route: Route, bytes: usize, sends: bool) -> Result<Work<Buffer<u8>>> {
        let (group, peer) = (self.channel(route.channel)?, Rank(route.peer as u32));
        match sends {
            true => Ok(group.send_length_async(bytes, peer)?),
            false => Ok(group.recv_length_async(bytes, peer)?),
        }
    }

    /// The communicator that carries the messages of a channel; with servers, those of a worker.
    pub fn channel(&self, channel: usize) -> Result<&Communicator> {
        let gone = || Error::Strategy(format!("there is no channel {channel}"));
        self.groups.channel(channel).ok_or_else(gone)
    }
}
