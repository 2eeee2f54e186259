//! A rank's handle on a group of ranks: every collective, blocking or not, in place or not.
//!
//! ```text
//! Communicator -- Membership (shared with the communication thread and the world)
//!      |            '-- Backend
//!      |-- Plan, Schedules --> Prepared: call, schedule, geometry
//!      '-- Connection <--------- run on the caller's slice, here or on the communication thread
//! ```

mod any;
mod asynchronous;
mod blocking;
mod joining;
mod membership;
mod operation;
mod path;
mod plan;
mod planned;
mod point_to_point;
mod request;
mod schedules;
mod shared;
mod shrink;
mod split;

pub use joining::Joining;
pub(crate) use membership::{Membership, ProcessState};
pub use plan::{Plan, Planned};

use crate::backends::tcp::Tcp;
use crate::backends::{GroupId, Member};
use crate::schedule::Rank;
use crate::transport::Connection;
use crate::{Collective, Element, Error, Operation, Result};
use allfold_kernels::fused::Ends;
use allfold_sim::Picos;
use operation::{Prepared, Site};
use request::Request;
use schedules::Schedules;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A rank's handle on its group. [`crate::World`] gives one to each rank; [`Communicator::split`] makes smaller ones.
/// It belongs to the thread of its rank and cannot be sent to another.
///
/// Every rank of the group makes the same calls in the same order, with the same counts, types, operators and
/// roots. Where ranks disagree all of them get [`Error::Mismatch`]. After an error of the group the communicator
/// is poisoned and every further call fails; an [`Error::Argument`] concerns its caller alone and sends nothing.
///
/// Where a rank's own part is done before the others have called, it returns and is told in its next call.
///
/// # Errors of the group
/// Every operation returns by its deadline, on every rank that is left, with its result or with one of these:
/// [`Error::Mismatch`] (two ranks called different things), [`Error::PeerLost`] (a rank has died, returned or left),
/// [`Error::DeadlineExceeded`], [`Error::Aborted`], [`Error::Protocol`] and [`Error::Schedule`] (a schedule that cannot be
/// run, or not the same one on all ranks), [`Error::System`], on virtual time also [`Error::Deadlock`],
/// [`Error::Unresponsive`] and [`Error::Endless`]; and after any of these [`Error::Poisoned`]. They name the rank, the
/// operation and the round. What the buffers hold then has no meaning.
///
/// `n` is [`Communicator::size`] in what follows.
///
/// ```
/// use allfold_collectives::{Communicator, Error, ReduceOp, World};
///
/// let sums = World::threads(4).run(|comm: Communicator| -> Result<Vec<i64>, Error> {
///     let bucket = vec![i64::from(comm.rank().0); 3];
///     let work = comm.all_reduce_async(bucket.into(), ReduceOp::Sum)?;
///     // ... something else meanwhile ...
///     Ok(work.wait()?.into_vec())
/// })?;
/// assert_eq!(sums, vec![vec![6; 3]; 4]);
///
/// // Ranks that disagree are told, all of them.
/// let error = World::threads(2).run(|comm: Communicator| -> Result<(), Error> {
///     let mut data = vec![1.0f32; 10 + comm.rank().index()];
///     comm.all_reduce(&mut data, ReduceOp::Sum)
/// });
/// assert!(error.unwrap_err().to_string().starts_with("ranks disagree: rank"));
/// # Ok::<(), Error>(())
/// ```
pub struct Communicator {
    /// Before the membership: the connection is dropped first.
    connection: RefCell<Connection>,
    membership: Arc<Membership>,
    plan: Plan,
    schedules: RefCell<Schedules>,
    /// The latest requests, ready to run.
    prepared: RefCell<Vec<(Request, Arc<Prepared>)>>,
    /// How many smaller communicators it was shrunk to.
    shrunk: Cell<u64>,
    /// For each peer, the number of point-to-point messages sent to it and received from it.
    letters: RefCell<Letters>,
    /// Where the communicator is a process's own, and no thread of a world's: what outlives all of its kind.
    owner: Option<Arc<Home>>,
}

/// A rank that is a process: it leaves all of its groups and waits for its threads once the last handle goes.
struct Home {
    process_state: Arc<ProcessState>,
    backend: Arc<dyn crate::backends::Backend>,
    rank: Rank,
}

impl Drop for Home {
    fn drop(&mut self) {
        self.process_state.leave(|operations| match std::thread::panicking() {
            true => crate::Lost::Panicked("its process is unwinding".into()),
            false => crate::Lost::ReturnedEarly { operations },
        });
        self.backend.retire(self.backend.main(self.rank));
        self.process_state.join();
    }
}

/// Point-to-point messages, counted by peer.
#[derive(Default)]
struct Letters {
    sent: BTreeMap<Rank, u64>,
    received: BTreeMap<Rank, u64>,
}

impl Communicator {
    pub(crate) fn new(membership: Arc<Membership>, plan: Plan) -> Communicator {
        let connection = RefCell::new(membership.connect(membership.task));
        let (schedules, prepared, shrunk, letters) = Default::default();
        Communicator { connection, membership, plan, schedules, prepared, shrunk, letters, owner: None }
    }

    /// This process as one rank of a world that talks over TCP, whose ranks have found each other.
    ///
    /// Dropping it, and every communicator split off it, waits for what is still to be sent.
    ///
    /// # Errors
    /// [`Error::Missing`] and [`Error::Refused`] where a rank does not answer or does not want this one,
    /// [`Error::AuthFailed`] where it holds another secret, [`Error::Argument`] for an address that needs one.
    pub fn over_tcp(peers: crate::tcp::Peers) -> Result<Communicator> {
        Communicator::recorded(peers, None)
    }

    /// This process as one rank of the MPI job that `mpirun`, or a cluster's own launcher, has started: see
    /// [`crate::mpi`], also for what failure means there. MPI starts once in a process, so this works once.
    ///
    /// # Errors
    /// [`Error::System`] where MPI cannot be started, or not for calls from many threads.
    #[cfg(feature = "mpi")]
    pub fn over_mpi(options: crate::mpi::Options) -> Result<Communicator> {
        let flight = options.flight.clone();
        let (mpi, rank, size) = crate::backends::mpi::Mpi::start(options)?;
        Ok(Communicator::process(Arc::new(mpi), rank, size, flight))
    }

    /// Over sockets, with a folder for its flight record.
    fn recorded(peers: crate::tcp::Peers, flight: Option<std::path::PathBuf>) -> Result<Communicator> {
        let (rank, size) = (peers.rank, peers.addresses.len() as u32);
        Ok(Communicator::process(Arc::new(Tcp::connect(peers)?), rank, size, flight))
    }

    /// This process as one rank of a backend's world.
    fn process(
        backend: Arc<dyn crate::backends::Backend>,
        rank: Rank,
        size: u32,
        flight: Option<std::path::PathBuf>,
    ) -> Communicator {
        let process_state = Arc::new(ProcessState::new(&backend, rank, size, flight));
        let member = Member { group: GroupId(0), rank };
        let membership =
            Membership::take(backend.clone(), backend.main(rank), member, size, 0, &process_state);
        let owner = Some(Arc::new(Home { process_state, backend, rank }));
        Communicator::new(membership, Plan::default()).at(owner)
    }

    fn at(mut self, owner: Option<Arc<Home>>) -> Communicator {
        self.owner = owner;
        self
    }

    /// Whether its ranks are threads of this one process.
    pub fn of_one_process(&self) -> bool {
        self.owner.is_none()
    }

    /// This rank, below [`Communicator::size`].
    pub fn rank(&self) -> Rank {
        self.membership.member.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.membership.size
    }

    /// This rank's time since the start of the run: virtual on the simulator, else real.
    pub fn now(&self) -> Picos {
        self.membership.backend.clock().now(self.membership.task)
    }

    /// Says that this rank computes. On virtual time that takes as long as the device model says; in real time the
    /// computation itself takes its time, and this does nothing.
    pub fn charge(&self, work: &allfold_sim::DeviceWork) {
        self.membership.backend.clock().charge(self.membership.task, work);
    }

    /// The choices of algorithms.
    pub fn plan(&self) -> Plan {
        self.plan
    }

    /// This communicator with other choices of algorithms. Every rank must make the same choices.
    pub fn with_plan(mut self, plan: Plan) -> Communicator {
        self.plan = plan;
        self.schedules.take();
        self.prepared.take();
        self
    }

    /// This communicator, running one collective by the algorithm of this name.
    ///
    /// # Errors
    /// [`Error::Registry`] if there is no such algorithm.
    pub fn with_algorithm(self, collective: Collective, name: &str) -> Result<Communicator> {
        let plan = self.plan.algorithm(collective, name)?;
        Ok(self.with_plan(plan))
    }

    /// Fails the group: every rank's operation under way, and every later one, returns [`Error::Aborted`] with this
    /// reason.
    pub fn abort(&self, why: impl Into<String>) {
        self.membership.backend.abort(self.membership.task, self.membership.member, why.into());
    }

    fn request<T: Element>(&self, collective: Collective, count: usize) -> Request {
        let operation = Operation::Collective(collective);
        Request { collective, operation, count, dtype: T::DTYPE, op: None, root: None }
    }

    /// A request ready to run: worked out now, or of late.
    fn prepare(&self, request: Request) -> Result<Arc<Prepared>> {
        const KEPT: usize = 64;
        self.membership.check()?;
        let mut latest = self.prepared.borrow_mut();
        if let Some(at) = latest.iter().position(|(known, _)| *known == request) {
            // Towards the front, but not past all others at once: what is called in turn stays in order.
            let before = at.saturating_sub(1);
            if before < at {
                latest.swap(at, before);
            }
            return Ok(latest[before].1.clone());
        }
        let site = Site {
            rank: self.rank(),
            size: self.size(),
            plan: &self.plan,
            schedules: &mut self.schedules.borrow_mut(),
            connection: Some(&mut self.connection.borrow_mut()),
        };
        let prepared = Arc::new(Prepared::new(request, site)?);
        latest.truncate(KEPT - 1);
        latest.push((request, prepared.clone()));
        Ok(prepared)
    }

    /// Runs an operation on the caller's slices, in this thread, after all that is outstanding.
    fn blocking(&self, request: Request, ends: Ends<'_>) -> Result<()> {
        self.numbered(request, ends).map(drop)
    }

    /// Runs a request; returns the operation's number in the sequence.
    fn numbered(&self, request: Request, ends: Ends<'_>) -> Result<u64> {
        let prepared = self.prepare(request)?;
        let number = self.membership.number();
        let run = |begin: &dyn Fn()| prepared.run(number, ends, &mut self.connection.borrow_mut(), begin);
        let result = match self.membership.outstanding() {
            None => self.membership.run_recording(|| prepared.call(number), run),
            Some(_) => {
                let ticket = self.membership.record_issue(prepared.call(number), None);
                self.drain()
                    .and_then(|()| self.membership.run_recorded(ticket, self.membership.task, || run(&|| ())))
            }
        };
        self.membership.tell(result.map(|()| number))
    }

    /// Waits for all asynchronous operations, which come before this thread's next one.
    fn drain(&self) -> Result<()> {
        match self.membership.outstanding() {
            Some((done, count)) => self.membership.backend.clock().pass(self.membership.task, done, count),
            None => Ok(()),
        }
    }

    /// `n` blocks of this many elements.
    fn times(&self, block: usize) -> Result<usize> {
        let n = self.size();
        block.checked_mul(n as usize).ok_or_else(|| {
            Error::Argument(format!("{n} blocks of {block} elements are more than memory can address"))
        })
    }

    /// Where this rank's block lies among all.
    fn block(&self, len: usize) -> Range<usize> {
        let at = self.rank().index() * len;
        at..at + len
    }

    fn root(&self, root: Rank) -> Result<Rank> {
        if root.0 < self.size() {
            return Ok(root);
        }
        let last = self.size() - 1;
        Err(Error::Argument(format!("root {root} is outside the group: its ranks are 0 to {last}")))
    }
}

impl Drop for Communicator {
    /// The rank leaves the group, unless it is unwinding: then the world says that it panicked.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.membership.leave(|operations| crate::Lost::ReturnedEarly { operations });
        }
    }
}

fn in_place<T: Element>(data: &mut [T]) -> Ends<'_> {
    Ends::InPlace(bytemuck::cast_slice_mut(data))
}

fn apart<'a, T: Element>(from: &'a [T], to: &'a mut [T]) -> Ends<'a> {
    Ends::Apart(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to))
}

fn expect(what: &str, got: usize, want: usize) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(Error::Argument(format!("{what} has {got} elements where {want} are needed")))
}
