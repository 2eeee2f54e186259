//! The communicators of a rank on a clock, and the calls of layers to the ranks along their axis.

use super::links::WorldLinks;
use super::rank_clock::RankClock;
use super::sync_points::{Post, SyncPoints};
use super::{ClockRank, Queue, Shared};
use crate::exchange::SharedExchange;
use crate::{GroupedCollective, RankGroups};
use allfold_collectives::{Buffer, Collective, DType, Rank, Work};
use allfold_sim::Picos;
use allfold_trainer::engine::{Keep, MeshAxis, RankPlace, Route};
use allfold_trainer::layers::PeerCall;
use allfold_trainer::strategies::hooks::HookCall;
use allfold_trainer::timing::work_of;
use allfold_trainer::{Error, Phase, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What gives the exchanges of a rank their times.
pub(crate) enum Exchanges<'a> {
    /// A model of the time from the moment at which all ranks have entered an exchange; stepped ranks synchronise at
    /// `sync_points`.
    Modeled { sync_points: &'a SyncPoints, model: &'a dyn SharedExchange },
    /// Virtual links, which carry all exchanges; every rank is stepped.
    Links(Box<WorldLinks<'a>>),
}

/// An exchange that was started.
pub(super) enum Pending {
    /// The exchange is done at this time.
    At(Picos),
    /// One end of a message at the synchronisation points.
    Message(usize),
    /// The exchange is on virtual links.
    Work(Work<Buffer<u8>>),
}

/// The exchanges of a rank on a clock: its communicators, and when each has done its operations.
pub(super) struct ClockExchanges<'a> {
    with: Shared<'a>,
    place: Arc<RankPlace>,
    pub by: Exchanges<'a>,
    /// For each unit, the stages that hold it, if this one does and is not alone.
    pub copies: Vec<Option<Vec<usize>>>,
    groups: BTreeMap<Queue, Arc<RankGroups>>,
    /// When each communicator has done all its operations so far, and how many of them had several stepped ranks.
    free: BTreeMap<Queue, Picos>,
    entered: BTreeMap<Queue, u64>,
    /// The shift along a layer's axis that is in progress.
    shift: Option<Pending>,
}

impl<'a> ClockExchanges<'a> {
    pub fn new(with: Shared<'a>, place: Arc<RankPlace>, by: Exchanges<'a>) -> ClockExchanges<'a> {
        let (mesh, stage) = (with.mesh, place.position(MeshAxis::Pipeline).index);
        let holds = |stage: usize, unit: usize| {
            let first = with.ranks.iter().position(|rank| *rank == mesh.first_of_stage(stage));
            first.is_some_and(|first| with.specs[first][unit].keep != Keep::Nothing)
        };
        let copies = |unit: usize| {
            let holders: Vec<usize> = (0..mesh.pipeline).filter(|stage| holds(*stage, unit)).collect();
            (holders.len() > 1 && holds(stage, unit)).then_some(holders)
        };
        let copies = (0..place.units.len()).map(copies).collect();
        let (groups, free, entered) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        ClockExchanges { with, place, by, copies, groups, free, entered, shift: None }
    }

    /// This rank's communicators on virtual links, whose clock is now this rank's.
    pub fn links(&mut self, now: Picos) -> Result<&mut WorldLinks<'a>> {
        match &mut self.by {
            Exchanges::Links(links) => {
                links.follow(now);
                Ok(links)
            }
            Exchanges::Modeled { .. } => {
                Err(Error::Strategy("a rank without servers has no messages of servers".into()))
            }
        }
    }

    /// When an exchange is done.
    pub fn end(&mut self, exchange: Pending, now: Picos) -> Result<Picos> {
        match (exchange, &self.by) {
            (Pending::At(done), _) => Ok(done),
            (Pending::Message(end), Exchanges::Modeled { sync_points, .. }) => sync_points.done(end),
            (Pending::Message(_), Exchanges::Links(_)) => {
                Err(Error::Strategy("virtual links have no synchronisation points".into()))
            }
            (Pending::Work(work), _) => {
                self.links(now)?;
                Ok(work.wait_timed()?.1)
            }
        }
    }

    /// The communicator along an axis; that of a smaller axis is the larger one's where both have the same ranks.
    pub fn along(&self, axis: MeshAxis) -> Queue {
        let mesh = &self.with.mesh;
        match axis {
            MeshAxis::Shard if mesh.shard == mesh.data => self.along(MeshAxis::Data),
            MeshAxis::ExpertReplica if mesh.expert == 1 => self.along(MeshAxis::Data),
            MeshAxis::Data if mesh.pipeline == 1 && mesh.tensor == 1 && mesh.servers == 0 => Queue::World,
            _ => Queue::Along(axis),
        }
    }

    fn groups(&mut self, queue: Queue) -> Arc<RankGroups> {
        let ClockExchanges { with: Shared { mesh, .. }, place, copies, groups, .. } = self;
        let make = || match queue {
            Queue::World => RankGroups::everyone(mesh.ranks() as u32),
            Queue::Along(axis) => RankGroups::along(mesh, axis, place.position(MeshAxis::Pipeline).index),
            Queue::Copies(unit) => {
                let stages = copies[unit].as_deref().unwrap_or_default();
                RankGroups::along(mesh, MeshAxis::Pipeline, 0).only(stages)
            }
        };
        groups.entry(queue).or_insert_with(|| Arc::new(make())).clone()
    }

    /// Starts a collective at `now`, after those that its communicator has not done yet.
    pub fn start(
        &mut self,
        now: Picos,
        queue: Queue,
        collective: Collective,
        count: usize,
        dtype: DType,
    ) -> Result<Pending> {
        let (sync_points, model) = match self.by {
            Exchanges::Modeled { sync_points, model } => (sync_points, model),
            Exchanges::Links(_) => {
                return Ok(Pending::Work(self.links(now)?.collective(queue, collective, count, dtype)?));
            }
        };
        let mut start = now.later(self.free.get(&queue).copied().unwrap_or_default());
        let among = self.groups(queue);
        let own = among.groups.iter().find(|group| group.contains(&Rank(self.place.rank as u32)));
        let own = own.map_or(&[][..], |group| &group[..]);
        let stepped = own.iter().filter(|rank| self.with.ranks.contains(&rank.index())).count();
        if stepped > 1 {
            let entered = self.entered.entry(queue).or_default();
            *entered += 1;
            start = sync_points.enter((queue, own[0], *entered), stepped, start)?;
        }
        let call = GroupedCollective { collective, count, dtype, among: &among };
        let done = start + model.collective(call)?;
        self.free.insert(queue, done);
        Ok(Pending::At(done))
    }

    /// Posts one end of a message of this many bytes by stepped rank `number`.
    pub fn post(
        &mut self,
        number: usize,
        at: Picos,
        route: Route,
        bytes: usize,
        sends: bool,
    ) -> Result<Pending> {
        let (sync_points, model) = match self.by {
            Exchanges::Modeled { sync_points, model } => (sync_points, model),
            Exchanges::Links(_) => return Ok(Pending::Work(self.links(at)?.message(route, bytes, sends)?)),
        };
        let (groups, mesh) = (self.groups(Queue::Along(route.axis)), &self.with.mesh);
        let own = self.place.position(route.axis).index;
        let (from, to) = if sends { (own, route.peer) } else { (route.peer, own) };
        // Ranks of a stage that are not stepped send at the same time.
        let alike = |group: &Vec<Rank>| !self.place.is_led || group.contains(&Rank(self.place.rank as u32));
        let pairs = groups.groups.iter().filter(|group| alike(group)).map(|group| (group[from], group[to]));
        let pairs: Vec<(Rank, Rank)> = pairs.collect();
        let takes = model.message(&pairs, mesh.ranks() as u32, bytes as u64)?;
        let is_peer = |rank: &usize| {
            let place = |rank, axis| mesh.position(rank, axis).index;
            let stays = [MeshAxis::Data, MeshAxis::Pipeline, MeshAxis::Tensor]
                .into_iter()
                .filter(|axis| *axis != route.axis);
            place(*rank, route.axis) == route.peer
                && stays.into_iter().all(|axis| place(*rank, axis) == place(self.place.rank, axis))
        };
        let gone = || Error::Strategy(format!("there is no rank at position {} of the axis", route.peer));
        let peer = self.with.ranks.iter().position(is_peer).ok_or_else(gone)?;
        let channel = route.channel;
        Ok(Pending::Message(sync_points.post(Post { rank: number, peer, channel, sends, at, takes })))
    }
}

impl ClockExchanges<'_> {
    /// Waits for an exchange. Returns when it was done.
    pub fn wait(&mut self, clock: &mut RankClock, exchange: Pending) -> Result<Picos> {
        let done = self.end(exchange, clock.now)?;
        clock.wait_until(done);
        Ok(done)
    }

    /// Runs a collective and waits for it.
    pub fn run(
        &mut self,
        clock: &mut RankClock,
        queue: Queue,
        collective: Collective,
        count: usize,
        dtype: DType,
    ) -> Result<()> {
        let exchange = match self.by {
            Exchanges::Modeled { .. } => self.start(clock.now, queue, collective, count, dtype)?,
            // On its own thread, as in a run: messages that begin at the same time are sent in the order of threads.
            Exchanges::Links(_) => {
                Pending::At(self.links(clock.now)?.run_collective(queue, collective, count, dtype)?)
            }
        };
        self.wait(clock, exchange).map(drop)
    }

    /// Runs the calls of a phase of micro-batch `micro` to the ranks along the axis of its layer.
    pub fn call_peers(
        &mut self,
        clock: &mut RankClock,
        axis: MeshAxis,
        calls: Vec<PeerCall>,
        phase: Phase,
        micro: Option<usize>,
    ) -> Result<()> {
        let (queue, dtype) = (self.along(axis), self.with.dtype());
        let size = self.place.position(axis).size;
        for call in calls {
            let (collective, count) = match call {
                PeerCall::Sum(count) | PeerCall::Max(count) => (Collective::AllReduce, count),
                PeerCall::Gather(count) => (Collective::AllGather, count),
                PeerCall::SumScattered(count) => (Collective::ReduceScatter, count / size),
                PeerCall::AllToAll(count) => (Collective::AllToAll, count / size),
                PeerCall::BeginShift(count) => {
                    self.shift = Some(self.start(clock.now, queue, Collective::SendRecv, count, dtype)?);
                    continue;
                }
                PeerCall::EndShift => {
                    if let Some(shift) = self.shift.take() {
                        self.wait(clock, shift)?;
                    }
                    continue;
                }
                PeerCall::Charge(cost) => {
                    clock.does(work_of(phase), micro, self.with.costs.operation(phase, cost));
                    continue;
                }
            };
            self.run(clock, queue, collective, count, dtype)?;
        }
        Ok(())
    }

    /// Does a part of a hook's exchange; a collective is only started, not waited for.
    pub fn hook_call(&mut self, clock: &mut RankClock, call: HookCall) -> Result<Pending> {
        match call {
            HookCall::Work(cost) => {
                clock.now += self.with.costs.operation(Phase::Loss, cost);
                Ok(Pending::At(clock.now))
            }
            HookCall::Collective(collective, count, dtype) => {
                self.start(clock.now, self.along(MeshAxis::Data), collective, count, dtype)
            }
        }
    }
}

impl ClockRank<'_> {
    /// Waits for an exchange. Returns when it was done.
    pub(super) fn wait(&mut self, exchange: Pending) -> Result<Picos> {
        self.exchanges.wait(&mut self.clock, exchange)
    }

    /// Runs a collective and waits for it.
    pub(super) fn run_collective(
        &mut self,
        queue: Queue,
        collective: Collective,
        count: usize,
        dtype: DType,
    ) -> Result<()> {
        self.exchanges.run(&mut self.clock, queue, collective, count, dtype)
    }
}
