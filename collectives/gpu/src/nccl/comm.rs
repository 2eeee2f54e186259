//! An NCCL communicator: how ranks join it, and how issued work is waited for.

use super::api::{self, Answer, Api, Config, CudaStream, IN_PROGRESS, RawComm, RawId, SUCCESS, check};
use super::aside::{Sent, aside};
use super::call::{NcclCall, Use};
use super::control::{ComparedCalls, Control, Kind};
use super::deadline::{Wait, until};
use super::presence::NcclLibrary;
use crate::driver::failed;
use crate::{Error, Rank, Result};
use allfold_cuda::{Memory, Queue};
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

/// The id by which the ranks of one communicator find each other: rank 0 makes it and sends it to the other ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl std::fmt::Debug for UniqueId {
    /// Prints no bytes, because any process with the unique id can join the communicator.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId(..)")
    }
}

impl UniqueId {
    /// Makes a new unique id.
    ///
    /// # Errors
    /// NCCL is missing, or found no network interface to listen on.
    pub fn new() -> Result<UniqueId> {
        UniqueId::by(api::api()?)
    }

    pub(super) fn by(api: &Api) -> Result<UniqueId> {
        let mut id = RawId([0; 128]);
        // SAFETY: the argument points to one id.
        check("make a unique id", unsafe { (api.get_unique_id)(&mut id) })?;
        Ok(UniqueId(id.0))
    }
}

/// One rank of an NCCL communicator, for the thread that made it. Every rank must issue its collectives in the same order.
///
/// After an error of NCCL or a missed deadline the communicator has failed: it refuses calls, and work in flight is aborted by
/// [`NcclComm::abandon`] or on drop. Captured graphs that hold its collectives must be destroyed first.
pub struct NcclComm {
    pub(super) api: &'static Api,
    pub(super) raw: RawComm,
    pub(super) queue: Queue,
    /// The queue's stream, as NCCL's handle.
    pub(super) stream: CudaStream,
    pub(super) rank: Rank,
    pub(super) size: u32,
    pub(super) deadline: Duration,
    pub(super) calls: ComparedCalls,
    /// The buffer of one byte that a barrier reduces.
    pub(super) one: Option<Memory>,
    /// Calls that are recorded for a group, or about to be made.
    pub(super) posted: Vec<NcclCall>,
    /// Whether calls are only recorded.
    pub(super) open: bool,
    /// The kinds of calls for which connections are made.
    pub(super) known: BTreeSet<Use>,
    /// The number of issued calls (a group counts as one) since the last wait that ended in time.
    pub(super) outstanding: u32,
    /// Whether a call has not returned from NCCL.
    pub(super) stuck: bool,
    /// The limit of the thread blocks of its kernels, on a GPU that several ranks share.
    pub(super) blocks: Option<u32>,
    /// The reason why the communicator has failed; `None` while it works.
    pub(super) broken: Option<String>,
}

/// The thread blocks of NCCL's kernels on a GPU that several ranks share. Blocks of all ranks must run at the same time, because each
/// waits for the others: on an H200, all-reduces of 4 and 8 ranks ended with 32 blocks and hung with NCCL's own number.
const BLOCKS: u32 = 32;

/// Where NCCL stores the handle of a new communicator, perhaps after its call has returned.
pub(super) struct Region(AtomicPtr<std::ffi::c_void>);

impl Region {
    pub fn new() -> Arc<Region> {
        Arc::new(Region(AtomicPtr::new(std::ptr::null_mut())))
    }

    /// The address at which NCCL stores the handle, valid as long as this value lives.
    pub fn address(&self) -> *mut RawComm {
        self.0.as_ptr()
    }

    pub fn get(&self) -> RawComm {
        self.0.load(Ordering::Acquire)
    }
}

/// Whether communicators block; only tests that put back a defect make non-blocking communicators.
pub(super) fn blocking(queue: &Queue) -> bool {
    ![3, 4, 11].into_iter().any(|defect| queue.machine().seeded(defect))
}

impl NcclComm {
    /// Joins a communicator on the queue's device. Rank 0's unique id reaches the other ranks through `control`. Ranks also compare
    /// collectives through `control` before issuing them, so that a mismatch is an error and not a hang: the first call of every kind
    /// (collective, size, type, operator or root), and with `debug` every call.
    ///
    /// # Errors
    /// NCCL is missing or too old; two ranks are on one GPU; some rank did not join by the deadline; NCCL failed.
    pub fn join(
        queue: Queue,
        (rank, size): (Rank, u32),
        mut control: Box<dyn Control>,
        deadline: Duration,
        debug: bool,
    ) -> Result<NcclComm> {
        let (api, together) = NcclLibrary::of(&queue).admitted(&queue, size, &mut *control)?;
        let mine = if rank == Rank(0) { UniqueId::by(api)?.0 } else { [0; 128] };
        let shown = control.all_gather(&mine)?;
        let id = shown.first().and_then(|id| <[u8; 128]>::try_from(&id[..]).ok());
        let id = id.ok_or_else(|| Error::System("rank 0 sent no NCCL unique id".into()))?;
        let limited = together > 1 && !queue.machine().seeded(23);
        let blocks = limited.then(|| (BLOCKS / together).max(1));
        let mut comm = NcclComm::make_by(api, queue, (rank, size), (UniqueId(id), blocks), deadline)?;
        comm.calls = ComparedCalls::through(control, debug);
        Ok(comm)
    }

    /// Joins a communicator by a unique id that the caller already has.
    ///
    /// # Errors
    /// The errors of [`NcclComm::join`].
    pub fn make(queue: Queue, place: (Rank, u32), id: UniqueId, deadline: Duration) -> Result<NcclComm> {
        let api = NcclLibrary::of(&queue).api?;
        NcclComm::make_by(api, queue, place, (id, None), deadline)
    }

    /// [`NcclComm::make`] with the function table of a given library, and a limit for the thread blocks of its kernels, if any.
    pub(super) fn make_by(
        api: &'static Api,
        queue: Queue,
        (rank, size): (Rank, u32),
        (id, blocks): (UniqueId, Option<u32>),
        deadline: Duration,
    ) -> Result<NcclComm> {
        if rank.0 >= size {
            return Err(Error::Argument(format!("rank {rank} is outside the group, which has {size} ranks")));
        }
        let mut comm = NcclComm::held(api, std::ptr::null_mut(), queue, (rank, size), deadline)?;
        comm.blocks = blocks;
        let place = Region::new();
        let (to, blocking) = (place.clone(), blocking(&comm.queue));
        let init = move |api: &Api, _: RawComm| {
            let mut config = Config::new(blocking, blocks);
            let (size, rank) = (size as c_int, rank.0 as c_int);
            // SAFETY: the closure keeps the place for the handle, and the settings live during the call.
            unsafe { (api.init)(to.address(), size, RawId(id.0), rank, &mut config) }
        };
        let answer = comm.blocking_call("join", init);
        // A failed init also leaves a communicator, which is aborted when `comm` is dropped.
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
            calls: ComparedCalls::default(),
            one: None,
            posted: Vec::new(),
            open: false,
            known: BTreeSet::new(),
            outstanding: 0,
            stuck: false,
            blocks: None,
            broken: None,
        })
    }

    pub(super) fn made(mut self, what: &str, answer: Answer) -> Result<NcclComm> {
        self.settle(what, answer)?;
        // The rank and the size are read from NCCL, because a split or a shrink renumbers ranks.
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator is live, and the pointers lead to two integers.
        let answers =
            unsafe { ((self.api.user_rank)(self.raw, &mut rank), (self.api.count)(self.raw, &mut size)) };
        check("tell its rank", answers.0)?;
        check("tell its size", answers.1)?;
        (self.rank, self.size) = (Rank(rank as u32), size as u32);
        Ok(self)
    }

    /// The rank of this communicator handle.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Whether ranks share a GPU, so that the thread blocks of their kernels are limited.
    pub(crate) fn shares_gpu(&self) -> bool {
        self.blocks.is_some()
    }

    /// The version of the library, such as (2, 28, 3).
    ///
    /// # Errors
    /// The library does not tell its version.
    pub fn version(&self) -> Result<(i32, i32, i32)> {
        api::supported(self.api)
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The queue with the stream of the communicator's collectives; its memory is on the same device.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Checks, before a call, that the communicator has not failed and, where calls are compared, that all ranks make the same
    /// call.
    pub(super) fn enter(&mut self, kind: Option<Kind>, call: impl FnOnce() -> String) -> Result<()> {
        self.whole()?;
        self.calls.compare(kind, call).map_err(|error| self.give_up(error))
    }

    /// The checks of [`NcclComm::all_reduce`], for a schedule that runs over this communicator's messages.
    pub(crate) fn enter_schedule(
        &mut self,
        n: usize,
        dtype: crate::DType,
        op: crate::ReduceOp,
    ) -> Result<()> {
        let kind = ("schedule", n, dtype as c_int, op as c_int);
        self.enter(Some(kind), || format!("a scheduled all_reduce({n} x {dtype}, {op})"))
    }

    /// An error if the communicator has failed.
    pub(super) fn whole(&self) -> Result<()> {
        match &self.broken {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Makes a call that may block, on a separate thread and with the deadline.
    pub(super) fn blocking_call(
        &mut self,
        what: &str,
        call: impl FnOnce(&Api, RawComm) -> Answer + Send + 'static,
    ) -> Result<Answer> {
        let (api, raw, queue) = (self.api, Sent::new(self.raw), self.queue.clone());
        let body = move || {
            // NCCL uses the calling thread's current device.
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

    /// Waits until NCCL has completed a call, or the deadline has passed. A blocking call is complete when it returns.
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

    /// Waits until all issued work is done on the device.
    ///
    /// # Errors
    /// The deadline passes, or NCCL or the driver reports a failure. The communicator has then failed. It is aborted on drop or by
    /// [`NcclComm::abandon`]; all captured graphs that hold its collectives must be destroyed before, because `ncclCommAbort` waits
    /// for them.
    pub fn wait(&mut self, what: &str) -> Result<()> {
        let queue = self.queue.clone();
        self.wait_for(&queue, what)
    }

    /// Waits until a queue has finished all its work, which may include this communicator's collectives, such as a captured step.
    ///
    /// # Errors
    /// The errors of [`NcclComm::wait`].
    pub fn wait_for(&mut self, queue: &Queue, what: &str) -> Result<()> {
        self.wait_watching(queue, what, &mut || Ok(()))
    }

    /// [`NcclComm::wait_for`], which also ends with the first error of `watch`.
    pub(crate) fn wait_watching(
        &mut self,
        queue: &Queue,
        what: &str,
        watch: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.whole()?;
        let done = until(self.deadline, || match (self.api.idle)(queue) {
            Ok(true) => Ok(true),
            Ok(false) => self.poll(what).and_then(|()| watch()).map(|()| false),
            Err(error) => Err(self.give_up(self.at_fault(what, &error))),
        })?;
        if !done {
            return Err(self.late(what));
        }
        self.settled();
        Ok(())
    }

    /// Notes that all issued work is done, which the caller knows of a queue that has waited for it.
    pub(crate) fn settled(&mut self) {
        self.outstanding = 0;
    }

    /// Checks once whether NCCL has found a failure; work in flight continues.
    ///
    /// # Errors
    /// A failure that NCCL reports, now or earlier.
    pub fn poll(&mut self, what: &str) -> Result<()> {
        self.whole()?;
        match self.asynchronous() {
            SUCCESS | IN_PROGRESS => Ok(()),
            answer => Err(self.refused(what, answer)),
        }
    }

    pub(super) fn asynchronous(&self) -> Answer {
        let mut state = SUCCESS;
        // SAFETY: the communicator is live, and the pointer leads to one integer.
        match unsafe { (self.api.async_error)(self.raw, &mut state) } {
            SUCCESS => state,
            answer => answer,
        }
    }

    fn at_fault(&self, what: &str, error: &allfold_cuda::Error) -> Error {
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

    /// Marks the communicator as failed and returns the error.
    pub(super) fn give_up(&mut self, error: Error) -> Error {
        self.broken.get_or_insert_with(|| error.to_string());
        error
    }
}
