//! The description of a world: how many ranks it has, and how they run.

use super::kind::{Any, OnSockets, OnThreads, OnVirtualTime, WorldKind};
use crate::communicator::Plan;
use crate::registry::Algorithm;
use crate::{Collective, Error, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The description of a world: how many ranks it has, and how they run. [`World::threads`], [`World::tcp`], [`World::shm`] and
/// [`World::sim`] return a description. [`World::run`] reports wrong choices (no ranks, an unknown algorithm). An option that a kind of
/// world does not have does not compile:
///
/// ```compile_fail
/// # use allfold_collectives::World;
/// // Ranks in shared memory have no messages to choose.
/// let world = World::shm(2).messages();
/// ```
/// ```compile_fail
/// # use allfold_collectives::World;
/// // Threads run on real time, which has no costs to choose.
/// let world = World::threads(2).costs(allfold_sim::Costs::FREE);
/// ```
///
/// Worlds of several kinds have the common type `World`, without a kind:
///
/// ```
/// use allfold_collectives::{Communicator, Error, World};
///
/// let worlds: [World; 2] = [World::threads(2).into(), World::tcp(2).into()];
/// for world in worlds {
///     assert_eq!(world.run(|comm: Communicator| Ok::<_, Error>(comm.size()))?, [2, 2]);
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct World<K = Any> {
    pub(super) kind: K,
    pub(super) size: u32,
    pub(super) plan: Plan,
    /// The folder for flight records, written when an operation fails.
    pub(super) flight: Option<PathBuf>,
    /// The first invalid choice, which `run` reports.
    pub(super) wrong: Option<Error>,
}

impl From<World<OnThreads>> for World {
    fn from(world: World<OnThreads>) -> World {
        world.any()
    }
}

impl From<World<OnSockets>> for World {
    fn from(world: World<OnSockets>) -> World {
        world.any()
    }
}

impl From<World<OnVirtualTime>> for World {
    fn from(world: World<OnVirtualTime>) -> World {
        world.any()
    }
}

impl<K: WorldKind> World<K> {
    pub(super) fn of(size: u32, kind: K) -> World<K> {
        let wrong =
            (size == 0).then(|| Error::Argument("the world has 0 ranks; it must have 1 or more".into()));
        World { kind, size, plan: Plan::default(), flight: None, wrong }
    }

    /// This world without its kind, so that worlds of several kinds fit in one list.
    pub fn any(self) -> World {
        let World { kind, size, plan, flight, wrong } = self;
        World { kind: kind.into(), size, plan, flight, wrong }
    }

    /// The deadline of every operation, in real or virtual time; an operation that exceeds it fails and names the ranks that it waited
    /// for. The default in real time is five minutes. On virtual time there is no deadline by default, except that it is 300 s if fault
    /// rules do more than change the speed of ranks and links for the whole run.
    pub fn deadline(mut self, deadline: Duration) -> World<K> {
        self.kind.set_deadline(deadline);
        self
    }

    /// Writes every rank's last operations into this folder if any rank fails; see [`crate::flight`].
    pub fn flight_records(mut self, folder: &Path) -> World<K> {
        self.flight = Some(folder.to_path_buf());
        self
    }

    /// Runs a collective by the algorithm of this name; see [`Plan::algorithm`].
    pub fn algorithm(self, collective: Collective, name: &str) -> World<K> {
        let plan = self.plan.algorithm(collective, name);
        self.planned(plan)
    }

    /// Runs a collective by a user's own algorithm; see [`Plan::with`].
    pub fn with(mut self, algorithm: &'static Algorithm) -> World<K> {
        self.plan = self.plan.with(algorithm);
        self
    }

    /// Cuts chunks into segments of at most this many bytes; see [`Plan::segment`].
    pub fn segment(self, bytes: u64) -> World<K> {
        let plan = self.plan.segment(bytes);
        self.planned(plan)
    }

    /// Lets a rank have this many steps in flight; see [`Plan::window`].
    pub fn window(self, steps: u32) -> World<K> {
        let plan = self.plan.window(steps);
        self.planned(plan)
    }

    pub(super) fn refuse(mut self, why: &str) -> World<K> {
        self.wrong.get_or_insert_with(|| Error::Argument(why.into()));
        self
    }

    fn planned(mut self, plan: Result<Plan>) -> World<K> {
        match plan {
            Ok(plan) => self.plan = plan,
            Err(error) => self.wrong = self.wrong.or(Some(error)),
        }
        self
    }
}
