//! A communicator of NCCL's: how ranks join it, and how what was issued is waited for.

use super::api::{self, Answer, Api, Config, CudaStream, IN_PROGRESS, RawComm, RawId, SUCCESS, check};
use super::aside::{Sent, aside};
use super::call::{NcclCall, Use};
use super::control::{Control, agree};
use super::deadline::{Wait, until};
use super::presence::NcclLibrary;
use crate::driver::failed;
use crate::{Error, Rank, Result};
use allfold_kernels::cuda::{self, Memory, Queue};
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

/// The number by which the ranks of one communicator find each other: rank 0 makes it, and shows it to the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl std::fmt::Debug for UniqueId {
    /// The unique id lets its owner join the communicator, so it is not printed.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId(..)")
    }
}

impl UniqueId {
    /// A new one.
    ///
    /// # Errors
    /// That NCCL is missing, or found no interface to listen on.
    pub fn new() -> Result<UniqueId> {
        UniqueId::by(api::api()?)
    }

    pub(super) fn by(api: &Api) -> Result<UniqueId> {
        let mut id = RawId([0; 128]);
        // SAFETY: a place for one id.
        check("make a unique id", unsafe { (api.get_unique_id)(&mut id) })?;
        Ok(UniqueId(id.0))
    }
}

/// One rank of a communicator, for the thread that made it. Its collectives are issued in the same order by every rank.
///
/// After an error of NCCL's or of a deadline the communicator has failed: it refuses calls, and what is under way is aborted
/// by [`NcclComm::abandon`] or when it is dropped. Captured graphs that hold its collectives are destroyed before.
pub struct NcclComm {
    pub(super) api: &'static Api,
    pub(super) raw: RawComm,
    pub(super) queue: Queue,
    /// The queue's stream, as NCCL takes it.
    pub(super) stream: CudaStream,
    pub(super) rank: Rank,
    pub(super) size: u32,
    pub(super) deadline: Duration,
    /// The channel by which calls are compared beforehand, if the ranks joined through one.
    control: Option<Box<dyn Control>>,
    /// Whether every call is compared, and not only the first of each kind.
    debug: bool,
    /// Kinds of calls that all ranks have agreed on.
    agreed: BTreeSet<Kind>,
    sequence: u64,
    /// What a barrier reduces.
    pub(super) one: Option<Memory>,
    /// Calls that are noted for a group, or about to be made.
    pub(super) posted: Vec<NcclCall>,
    /// Whether calls are noted only.
    pub(super) open: bool,
    /// The connections that are set up.
    pub(super) known: BTreeSet<Use>,
    /// Calls since the device was last seen to be done.
    pub(super) outstanding: u32,
    /// Whether a call has not come back from NCCL.
    pub(super) stuck: bool,
    /// Why it cannot be used any more.
    pub(super) broken: Option<String>,
}

/// What ranks agree on the first time: the collective, its elements, type, and operator or root.
pub(super) type Kind = (&'static str, usize, c_int, c_int);

/// Where NCCL stores a new communicator, perhaps after its call has returned.
pub(super) struct Region(AtomicPtr<std::ffi::c_void>);

impl Region {
    pub fn new() -> Arc<Region> {
        Arc::new(Region(AtomicPtr::new(std::ptr::null_mut())))
    }

    /// The address of the handle, for NCCL. It is valid as long as this place lives.
    pub fn address(&self) -> *mut RawComm {
        self.0.as_ptr()
    }

    pub fn get(&self) -> RawComm {
        self.0.load(Ordering::Acquire)
    }
}

/// Whether communicators block. Those that do not are of defects that a test puts back in.
pub(super) fn blocking(queue: &Queue) -> bool {
    ![3, 4, 11].into_iter().any(|defect| queue.machine().seeded(defect))
}

impl NcclComm {
    /// Joins a communicator on the queue's device. Rank 0's unique id reaches the others through `control`, which also
    /// compares collectives beforehand, so that a mismatch is an error and not a hang: the first of every kind (what it is,
    /// its size, type, operator or root), and with `debug` every one.
    ///
    /// # Errors
    /// That NCCL is missing or too old; that two ranks are on one GPU; that not all ranks came by the deadline; what NCCL
    /// says.
    pub fn join(
        queue: Queue,
        (rank, size): (Rank, u32),
        mut control: Box<dyn Control>,
        deadline: Duration,
        debug: bool,
    ) -> Result<NcclComm> {
        // Told to all first: a rank without NCCL, or two on one GPU, must not leave the others waiting.
        let library = NcclLibrary::of(&queue);
        let presence = library.ask(&queue, true, &mut *control)?;
        let api = library.api.clone()?;
        if let Some(rank) = presence.lacks {
            return Err(Error::System(format!("rank {rank} has no NCCL; `allfold doctor` there says why")));
        }
        if let Some(pair) = presence.shared {
            return Err(library.refuses(pair));
        }
        let mine = if rank == Rank(0) { UniqueId::by(api)?.0 } else { [0; 128] };
        let shown = control.all_gather(&mine)?;
        let id = shown.first().and_then(|id| <[u8; 128]>::try_from(&id[..]).ok());
        let id = id.ok_or_else(|| Error::System("rank 0 sent no NCCL unique id".into()))?;
        let mut comm = NcclComm::make_by(api, queue, (rank, size), UniqueId(id), deadline)?;
        (comm.control, comm.debug) = (Some(control), debug);
        Ok(comm)
    }

    /// Joins by a unique id that is known already.
    ///
    /// # Errors
    /// As [`NcclComm::join`].
    pub fn make(queue: Queue, place: (Rank, u32), id: UniqueId, deadline: Duration) -> Result<NcclComm> {
        let api = NcclLibrary::of(&queue).api?;
        NcclComm::make_by(api, queue, place, id, deadline)
    }

    /// [`NcclComm::make`] with a given library.
    pub(super) fn make_by(
        api: &'static Api,
        queue: Queue,
        (rank, size): (Rank, u32),
        id: UniqueId,
        deadline: Duration,
    ) -> Result<NcclComm> {
        if rank.0 >= size {
            return Err(Error::Argument(format!("rank {rank} of {size}")));
        }
        let mut comm = NcclComm::held(api, std::ptr::null_mut(), queue, (rank, size), deadline)?;
        let place = Region::new();
        let (to, blocking) = (place.clone(), blocking(&comm.queue));
        let init = move |api: &Api, _: RawComm| {
            let mut config = Config::new(blocking);
            let (size, rank) = (size as c_int, rank.0 as c_int);
            // SAFETY: a place that this closure keeps, and settings that live during the call.
            unsafe { (api.init)(to.address(), size, RawId(id.0), rank, &mut config) }
        };
        let answer = comm.blocking_call("join", init);
        // A failed init leaves a communicator too, which is aborted when `comm` is dropped.
        comm.raw = place.get();
        comm.made("join", answer?)
    }

    pub(super) fn held(
        api: &'static Api,
        raw: RawComm,
        queue: Queue,
        (rank, size): (Rank, u32),
        deadline: Duration,
    ) -> Result<NcclComm> {
        let stream = (api.native)(&queue).map_err(failed)? as CudaStream;
        Ok(NcclComm {
            api,
            raw,
            queue,
            stream,
            rank,
            size,
            deadline,
            control: None,
            debug: false,
            agreed: BTreeSet::new(),
            sequence: 0,
            one: None,
            posted: Vec::new(),
            open: false,
            known: BTreeSet::new(),
            outstanding: 0,
            stuck: false,
            broken: None,
        })
    }

    pub(super) fn made(mut self, what: &str, answer: Answer) -> Result<NcclComm> {
        self.settle(what, answer)?;
        // Who it is, it says itself: after a split or a shrink ranks are numbered anew.
        let (mut rank, mut size) = (0, 0);
        // SAFETY: a live communicator and places for two integers.
        let answers =
            unsafe { ((self.api.user_rank)(self.raw, &mut rank), (self.api.count)(self.raw, &mut size)) };
        check("tell its rank", answers.0)?;
        check("tell its size", answers.1)?;
        (self.rank, self.size) = (Rank(rank as u32), size as u32);
        Ok(self)
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Ranks.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The stream of its collectives, and the memory of its device.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Before a call: whether the communicator is whole, and whether all ranks call the same, where that is compared.
    pub(super) fn enter(&mut self, kind: Option<Kind>, call: impl FnOnce() -> String) -> Result<()> {
        self.whole()?;
        self.sequence += 1;
        let new = self.debug || kind.is_some_and(|kind| !self.agreed.contains(&kind));
        let Some(control) = self.control.as_deref_mut().filter(|_| new) else { return Ok(()) };
        let call = format!("{} as operation {}", call(), self.sequence);
        agree(control, &call).map_err(|error| self.give_up(error))?;
        self.agreed.extend(kind);
        Ok(())
    }

    /// Before a schedule over this communicator's messages, as [`NcclComm::all_reduce`] does before NCCL's own collective.
    pub(crate) fn enter_schedule(
        &mut self,
        n: usize,
        dtype: crate::DType,
        op: crate::ReduceOp,
    ) -> Result<()> {
        let kind = ("schedule", n, dtype as c_int, op as c_int);
        self.enter(Some(kind), || format!("a scheduled all_reduce({n} x {dtype}, {op})"))
    }

    /// Whether nothing has gone wrong yet.
    pub(super) fn whole(&self) -> Result<()> {
        match &self.broken {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Makes a call that may block, on a thread of its own, with the deadline.
    pub(super) fn blocking_call(
        &mut self,
        what: &str,
        call: impl FnOnce(&Api, RawComm) -> Answer + Send + 'static,
    ) -> Result<Answer> {
        let (api, raw, queue) = (self.api, Sent::new(self.raw), self.queue.clone());
        let body = move || {
            // NCCL takes the calling thread's device.
            (api.native)(&queue).map(|_| call(api, raw.get()))
        };
        match aside(self.deadline, body) {
            Ok(Some(Ok(answer))) => Ok(answer),
            Ok(Some(Err(error))) => Err(self.give_up(failed(error))),
            Ok(None) => {
                self.stuck = true;
                Err(self.late(what))
            }
            Err(error) => Err(self.give_up(error)),
        }
    }

    /// Waits until a call has been taken, or the deadline has passed. A call that blocks has been when it returns.
    pub(super) fn settle(&mut self, what: &str, mut answer: Answer) -> Result<()> {
        if answer == SUCCESS {
            return Ok(());
        }
        let mut wait = Wait::new(self.deadline);
        while answer == IN_PROGRESS {
            if !wait.again() {
                return Err(self.late(what));
            }
            answer = self.asynchronous();
        }
        match answer {
            SUCCESS => Ok(()),
            answer => Err(self.refused(what, answer)),
        }
    }

    /// Waits until all that was issued is done on the device.
    ///
    /// # Errors
    /// The deadline, or what NCCL or the driver found on the way. The communicator has failed then, and is aborted when it is
    /// dropped or [`NcclComm::abandon`] is called, which must be after the destruction of all captured graphs that hold its
    /// collectives: `ncclCommAbort` waits for those.
    pub fn wait(&mut self, what: &str) -> Result<()> {
        let queue = self.queue.clone();
        self.wait_for(&queue, what)
    }

    /// Waits until a queue is done with all that it was given, which may wait for this communicator's collectives: a
    /// captured step that holds them, for one.
    ///
    /// # Errors
    /// As [`NcclComm::wait`].
    pub fn wait_for(&mut self, queue: &Queue, what: &str) -> Result<()> {
        self.whole()?;
        let done = until(self.deadline, || match (self.api.idle)(queue) {
            Ok(true) => Ok(true),
            Ok(false) => self.poll(what).map(|()| false),
            Err(error) => Err(self.give_up(self.at_fault(what, &error))),
        })?;
        if !done {
            return Err(self.late(what));
        }
        self.outstanding = 0;
        Ok(())
    }

    /// Asks NCCL once whether it has found a failure; what is under way goes on.
    ///
    /// # Errors
    /// What NCCL found, now or before.
    pub fn poll(&mut self, what: &str) -> Result<()> {
        self.whole()?;
        match self.asynchronous() {
            SUCCESS | IN_PROGRESS => Ok(()),
            answer => Err(self.refused(what, answer)),
        }
    }

    pub(super) fn asynchronous(&self) -> Answer {
        let mut state = SUCCESS;
        // SAFETY: a live communicator and a place for one integer.
        match unsafe { (self.api.async_error)(self.raw, &mut state) } {
            SUCCESS => state,
            answer => answer,
        }
    }

    fn at_fault(&self, what: &str, error: &cuda::Error) -> Error {
        Error::System(format!("rank {} could not {what}: {error}", self.rank))
    }

    fn refused(&mut self, what: &str, answer: Answer) -> Error {
        let (rank, what) = (self.rank, what.to_string());
        self.give_up(Error::Nccl { rank, what, code: answer, why: api::name(answer) })
    }

    pub(super) fn late(&mut self, what: &str) -> Error {
        let (rank, after, what) = (self.rank, self.deadline, what.to_string());
        let suspects = (0..self.size).map(Rank).filter(|other| *other != rank).collect();
        self.give_up(Error::NcclDeadline { rank, what, suspects, after })
    }

    /// Remembers why it cannot be used any more.
    pub(super) fn give_up(&mut self, error: Error) -> Error {
        self.broken.get_or_insert_with(|| error.to_string());
        error
    }
}
