//! The kinds of worlds: on threads, over sockets, on virtual time.

use crate::backends::tcp::Local;
use crate::backends::{sim, threads};
use allfold_sim::Picos;
use std::time::Duration;

/// A kind of world: where its ranks run, with its options. There are [`OnThreads`], [`OnSockets`],
/// [`OnVirtualTime`], and [`Any`] of these.
pub trait WorldKind: Clone + Into<Any> + sealed::Sealed {
    #[doc(hidden)]
    fn set_deadline(&mut self, deadline: Duration);
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Any {}
    impl Sealed for super::OnThreads {}
    impl Sealed for super::OnSockets {}
    impl Sealed for super::OnVirtualTime {}
}

/// Ranks that are threads of this process: [`crate::World::threads`].
#[derive(Clone)]
pub struct OnThreads(pub(super) threads::Options);

impl WorldKind for OnThreads {
    fn set_deadline(&mut self, deadline: Duration) {
        self.0.deadline = deadline;
    }
}

/// Ranks connected over loopback TCP: [`crate::World::tcp`], and [`crate::World::shm`] with collectives in shared memory.
#[derive(Clone)]
pub struct OnSockets {
    pub(super) local: Local,
    /// Whether the data of collectives are exchanged through memory that the ranks share.
    pub(super) share: bool,
}

impl WorldKind for OnSockets {
    fn set_deadline(&mut self, deadline: Duration) {
        self.local.deadlines.operation = deadline;
    }
}

/// Ranks that carry real data on a virtual clock: [`crate::World::sim`].
#[derive(Clone)]
pub struct OnVirtualTime(pub(super) Box<sim::Options>);

impl WorldKind for OnVirtualTime {
    fn set_deadline(&mut self, deadline: Duration) {
        let picos = u64::try_from(deadline.as_nanos().saturating_mul(1_000)).unwrap_or(u64::MAX / 4);
        self.0.deadline = Some(Picos(picos));
    }
}

/// Any kind of world, with the options that all kinds have.
#[derive(Clone)]
pub struct Any(pub(super) Place);

#[derive(Clone)]
pub(super) enum Place {
    Threads(OnThreads),
    Sockets(OnSockets),
    VirtualTime(OnVirtualTime),
}

impl From<OnThreads> for Any {
    fn from(kind: OnThreads) -> Any {
        Any(Place::Threads(kind))
    }
}

impl From<OnSockets> for Any {
    fn from(kind: OnSockets) -> Any {
        Any(Place::Sockets(kind))
    }
}

impl From<OnVirtualTime> for Any {
    fn from(kind: OnVirtualTime) -> Any {
        Any(Place::VirtualTime(kind))
    }
}

impl WorldKind for Any {
    fn set_deadline(&mut self, deadline: Duration) {
        match &mut self.0 {
            Place::Threads(kind) => kind.set_deadline(deadline),
            Place::Sockets(kind) => kind.set_deadline(deadline),
            Place::VirtualTime(kind) => kind.set_deadline(deadline),
        }
    }
}
