//! Exchanges of ranks that are all stepped: messages without contents, over the links of a [`World`](allfold_collectives::World) on
//! virtual time, whose clock follows a rank's before each of its operations. The exchanges slow each other as in a run.

use super::Queue;
use super::buffers::ClockBuffer;
use allfold_collectives::{Buffer, Collective, Communicator, DType, Rank, Work};
use allfold_sim::Picos;
use allfold_trainer::engine::{Mesh, MeshGroups, ParamUnit, RankMessages, Route};
use allfold_trainer::{Error, Result};

/// A message between a server and a worker that is under way, with its buffer if the sizes of tensors are known.
pub(super) struct ServingMessage {
    pub work: Work<Buffer<u8>>,
    pub buffer: Option<ClockBuffer>,
}

/// The communicators of a rank, and the messages of a parameter server that are under way.
pub(crate) struct WorldLinks<'a> {
    groups: MeshGroups<'a>,
    /// The messages of a parameter server.
    pub(super) messages: RankMessages<ServingMessage>,
}

impl<'a> WorldLinks<'a> {
    /// Splits `world` along the axes of `mesh`, with this many communicators for messages; `units` are those of this rank. Every
    /// rank must call it.
    pub fn new(
        world: &'a Communicator,
        (mesh, channels): (Mesh, usize),
        units: &[ParamUnit],
    ) -> Result<WorldLinks<'a>> {
        let groups = MeshGroups::new(world, mesh, channels, units)?;
        Ok(WorldLinks { groups, messages: RankMessages::default() })
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
            Queue::Copies(unit) => self.groups.copies(unit),
        };
        group.ok_or_else(|| Error::Strategy(format!("a collective of a rank that is alone in {queue:?}")))
    }

    /// Starts a collective after those that its communicator has not done yet.
    pub fn collective(
        &self,
        queue: Queue,
        collective: Collective,
        count: usize,
        dtype: DType,
    ) -> Result<Work<Buffer<u8>>> {
        Ok(self.group(queue)?.collective_length_async(collective, count, dtype)?)
    }

    /// Runs a collective. Returns when it is done.
    pub fn run_collective(
        &self,
        queue: Queue,
        collective: Collective,
        count: usize,
        dtype: DType,
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
