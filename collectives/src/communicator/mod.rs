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
mod lengths;
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
mod signalled;
mod split;

pub use joining::Joining;
pub(crate) use membership::{Membership, ProcessState};
pub use plan::{Plan, Planned};
pub use signalled::write_flight_record;

use crate::backends::tcp::Tcp;
use crate::backends::{GroupId, Member};
use crate::schedule::Rank;
use crate::transport::Connection;
use crate::{Collective, Element, Error, Operation, Result};
use allfold_kernels::fused::CallBuffers;
use allfold_sim::Picos;
use operation::{Prepared, Site};
use request::Request;
use schedules::Schedules;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A rank's handle on its group. [`crate::World`] gives a communicator to each rank; [`Communicator::split`] makes smaller communicators.
/// One thread uses a communicator at a time; it may be moved to another thread.
///
/// Every rank of the group makes the same calls in the same order, with the same counts, types, operators and roots. Where ranks
/// disagree, all of them get [`Error::Mismatch`]. After an error of the group the communicator is poisoned and every further call fails.
/// An [`Error::Argument`] is returned to its caller only, and nothing is sent.
///
/// If a rank's own part of an operation is done before the other ranks have called, its call succeeds, and the rank gets a failure of the
/// other ranks from its next call.
///
/// # Errors of the group
/// Every operation returns by its deadline, on every rank that is left, with its result or with one of these: [`Error::Mismatch`] (two
/// ranks called different things), [`Error::PeerLost`] (a rank has died, returned or left), [`Error::DeadlineExceeded`],
/// [`Error::Aborted`], [`Error::Protocol`] and [`Error::Schedule`] (a schedule that cannot be run, or not the same one on all ranks),
/// [`Error::System`], on virtual time also [`Error::Deadlock`], [`Error::Unresponsive`] and [`Error::Endless`]; and after any of these
/// [`Error::Poisoned`]. The error names the rank, the operation and the round. After an error the content of the buffers is undefined.
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
/// // If ranks disagree, all of them get the error.
/// let error = World::threads(2).run(|comm: Communicator| -> Result<(), Error> {
///     let mut data = vec![1.0f32; 10 + comm.rank().index()];
///     comm.all_reduce(&mut data, ReduceOp::Sum)
/// });
/// assert!(error.unwrap_err().to_string().starts_with("ranks disagree: rank"));
/// # Ok::<(), Error>(())
/// ```
pub struct Communicator {
    /// Declared before the membership, so that the connection is dropped first.
    connection: RefCell<Connection>,
    membership: Arc<Membership>,
    plan: Plan,
    schedules: RefCell<Schedules>,
    /// The latest requests, ready to run.
    prepared: RefCell<Vec<(Request, Arc<Prepared>)>>,
    /// The number of smaller communicators made from this one by `shrink`.
    shrunk: Cell<u64>,
    /// For each peer, the number of point-to-point messages sent to it and received from it.
    peer_sequences: RefCell<PeerSequences>,
    /// If the rank is a process, not a thread of a world: the state that all communicators of the process share.
    owner: Option<Arc<Home>>,
}

/// The state of a rank that is a process: when the last communicator is dropped, the rank leaves all of its groups and waits for
/// its threads.
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

/// Fails a communicator's group from any thread.
#[derive(Clone)]
pub struct AbortHandle(Arc<Membership>);

impl AbortHandle {
    /// Fails the group: see [`Communicator::abort`].
    pub fn abort(&self, why: impl Into<String>) {
        let membership = &self.0;
        membership.backend.abort(membership.task, membership.member, why.into());
    }
}

/// An operation that this rank's own thread is in. If the thread unwinds, the operation does not count among those that the rank has
/// done, so that the other ranks do not wait for the rest of the operation.
struct Unfinished<'a>(Option<&'a Membership>);

impl Unfinished<'_> {
    fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|membership| membership.take_back());
    }
}

/// Point-to-point messages, counted by peer.
#[derive(Default)]
struct PeerSequences {
    sent: BTreeMap<Rank, u64>,
    received: BTreeMap<Rank, u64>,
}

impl Communicator {
    pub(crate) fn new(membership: Arc<Membership>, plan: Plan) -> Communicator {
        let connection = RefCell::new(membership.connect(membership.task));
        let (schedules, prepared, shrunk, peer_sequences) = Default::default();
        Communicator {
            connection,
            membership,
            plan,
            schedules,
            prepared,
            shrunk,
            peer_sequences,
            owner: None,
        }
    }

    /// This process as one rank of a world over TCP, whose ranks have already exchanged their addresses.
    ///
    /// When this communicator and all that were split off it are dropped, the last drop waits for frames that are still unsent.
    ///
    /// # Errors
    /// [`Error::Missing`] and [`Error::Refused`] where a rank does not answer or refuses this rank, [`Error::AuthFailed`] where a rank
    /// holds another secret, [`Error::Argument`] for an address that needs a secret.
    pub fn over_tcp(peers: crate::tcp::PeerOptions) -> Result<Communicator> {
        Communicator::recorded(peers, None)
    }

    /// This process as one rank of the MPI job that `mpirun`, or a cluster's own launcher, has started. [`crate::mpi`] also explains what
    /// a failure means there. MPI starts only once in a process, so this works once.
    ///
    /// # Errors
    /// [`Error::System`] where MPI cannot be started, or does not support calls from many threads.
    #[cfg(feature = "mpi")]
    pub fn over_mpi(options: crate::mpi::Options) -> Result<Communicator> {
        let flight = options.flight.clone();
        let (mpi, rank, size) = crate::backends::mpi::Mpi::start(options)?;
        Ok(Communicator::process(Arc::new(mpi), rank, size, flight))
    }

    /// A rank over TCP, with the folder of its flight record.
    fn recorded(peers: crate::tcp::PeerOptions, flight: Option<std::path::PathBuf>) -> Result<Communicator> {
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
            Membership::take(backend.clone(), backend.main(rank), member, size, (0, None), &process_state);
        let owner = Some(Arc::new(Home { process_state, backend, rank }));
        Communicator::new(membership, Plan::default()).at(owner)
    }

    fn at(mut self, owner: Option<Arc<Home>>) -> Communicator {
        self.owner = owner;
        self
    }

    /// Whether the ranks of this communicator are threads of one process.
    pub fn of_one_process(&self) -> bool {
        self.owner.is_none()
    }

    /// The number of this rank: from 0, below [`Communicator::size`].
    pub fn rank(&self) -> Rank {
        self.membership.member.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.membership.size
    }

    /// The number of operations so far, which is also the number of the next operation in errors and flight records.
    pub fn operations(&self) -> u64 {
        self.membership.operations()
    }

    /// Sets the deadline of this rank's operations from the next one on, in all groups of its process. The deadlines of other ranks stay
    /// unchanged.
    ///
    /// # Errors
    /// [`Error::Argument`] unless ranks are connected over TCP: other worlds have one deadline for all their ranks.
    pub fn set_deadline(&self, deadline: std::time::Duration) -> Result<()> {
        if self.membership.backend.set_deadline(deadline) {
            return Ok(());
        }
        Err(Error::Argument("a rank sets its deadline only where it has joined its group over TCP".into()))
    }

    /// Stores the training step that this rank is in, from 0. The flight record contains the step, in its header and in every operation
    /// that is called afterwards.
    pub fn note_step(&self, step: u64) {
        self.membership.note_step(step);
    }

    /// The last operations of this rank, in all of its communicators; with `step`, only those called in that training step.
    pub fn flight_record(&self, step: Option<u64>) -> crate::flight::Record {
        self.membership.flight_record(step)
    }

    /// This rank's time since the start of the run: virtual on the simulator, else real.
    pub fn now(&self) -> Picos {
        self.membership.backend.clock().now(self.membership.task)
    }

    /// Accounts for computation of this rank. On virtual time the computation takes the time that the device model gives. In real time
    /// the computation itself takes its time, and this call does nothing.
    pub fn charge(&self, work: &allfold_sim::DeviceWork) {
        self.membership.backend.clock().charge(self.membership.task, work);
    }

    /// Advances this rank's virtual time by `span`, without computation; in real time this does nothing.
    pub fn advance(&self, span: Picos) {
        self.membership.backend.clock().advance(self.membership.task, span);
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

    /// Fails the group: every rank's current operation, and every later operation, returns [`Error::Aborted`] with this reason.
    pub fn abort(&self, why: impl Into<String>) {
        self.membership.backend.abort(self.membership.task, self.membership.member, why.into());
    }

    /// A handle with which another thread can fail the group while this thread waits in an operation: see
    /// [`Communicator::abort`].
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(self.membership.clone())
    }

    fn request<T: Element>(&self, collective: Collective, count: usize) -> Request {
        let operation = Operation::Collective(collective);
        Request { collective, operation, count, dtype: T::DTYPE, op: None, root: None }
    }

    /// The prepared form of a request: from the cache of the latest requests, or made now.
    fn prepare(&self, request: Request) -> Result<Arc<Prepared>> {
        const KEPT: usize = 64;
        self.membership.check()?;
        let mut latest = self.prepared.borrow_mut();
        if let Some(at) = latest.iter().position(|(known, _)| *known == request) {
            // A hit moves one position towards the front, because a full cache drops its last entry.
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

    /// Runs an operation on the caller's slices, in this thread, after all outstanding asynchronous operations.
    fn blocking(&self, request: Request, buffers: CallBuffers<'_>) -> Result<()> {
        self.numbered(request, buffers).map(drop)
    }

    /// Runs a request; returns the operation's number in the sequence.
    fn numbered(&self, request: Request, buffers: CallBuffers<'_>) -> Result<u64> {
        self.run_by(request, |prepared, number, connection, begin| {
            prepared.run(number, buffers, connection, begin)
        })
    }

    /// Runs a request by `run` once it is prepared; returns the operation's number in the sequence.
    fn run_by(
        &self,
        request: Request,
        run: impl FnOnce(&Prepared, u64, &mut Connection, &dyn Fn()) -> Result<()>,
    ) -> Result<u64> {
        let prepared = self.prepare(request)?;
        let number = self.membership.number();
        let unfinished = Unfinished(Some(&self.membership));
        let run = |begin: &dyn Fn()| run(&prepared, number, &mut self.connection.borrow_mut(), begin);
        let result = match self.membership.outstanding() {
            None => self.membership.run_recording(|| prepared.call(number), run),
            Some(_) => {
                let ticket = self.membership.record_issue(prepared.call(number), None);
                self.drain()
                    .and_then(|()| self.membership.run_recorded(ticket, self.membership.task, || run(&|| ())))
            }
        };
        unfinished.end();
        self.membership.report(result.map(|()| number))
    }

    /// Waits for all asynchronous operations, which come before the next blocking operation.
    fn drain(&self) -> Result<()> {
        match self.membership.outstanding() {
            Some((done, count)) => self.membership.backend.clock().pass(self.membership.task, done, count),
            None => Ok(()),
        }
    }

    /// The number of elements of `n` blocks of `block` elements each.
    fn times(&self, block: usize) -> Result<usize> {
        let n = self.size();
        block.checked_mul(n as usize).ok_or_else(|| {
            Error::Argument(format!("{n} blocks of {block} elements are more than memory can address"))
        })
    }

    /// The range of this rank's block in a buffer of one block per rank.
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
    /// The rank leaves the group. If the thread is unwinding, the world reports the panic instead.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.membership.leave(|operations| crate::Lost::ReturnedEarly { operations });
        }
    }
}

fn in_place<T: Element>(data: &mut [T]) -> CallBuffers<'_> {
    CallBuffers::InPlace(bytemuck::cast_slice_mut(data))
}

fn out_of_place<'a, T: Element>(from: &'a [T], to: &'a mut [T]) -> CallBuffers<'a> {
    CallBuffers::OutOfPlace(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to))
}

fn expect(what: &str, got: usize, want: usize) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(Error::Argument(format!("{what} has {got} elements where {want} are needed")))
}

/// A communicator is `Send`: programs in other languages keep it behind a lock and use it from any of their threads.
const _: () = {
    const fn may_be_moved<T: Send>() {}
    may_be_moved::<Communicator>();
};
