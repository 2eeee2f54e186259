//! A communicator of NCCL's: made without blocking, waited for with a deadline, ended in one of two ways.

use super::api::{self, Api, Config, IN_PROGRESS, RawComm, RawId, SUCCESS, SimInfo, check};
use super::control::{Control, agree};
use crate::{Error, Rank, Result};
use allfold_kernels::cuda::{self, Queue};
use std::ffi::c_int;
use std::time::{Duration, Instant};

/// The number by which the ranks of one communicator find each other: rank 0 makes it, and shows it to the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl std::fmt::Debug for UniqueId {
    /// It lets whoever has it join, so it is not printed.
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
pub struct NcclComm {
    pub(super) api: &'static Api,
    pub(super) raw: RawComm,
    pub(super) queue: Queue,
    rank: Rank,
    size: u32,
    deadline: Duration,
    /// What compares calls beforehand, where that was asked for.
    debug: Option<Box<dyn Control>>,
    sequence: u64,
    /// Why it cannot be used any more.
    broken: Option<String>,
}

#[allow(clippy::disallowed_methods, reason = "deadlines of GPUs are real time")]
fn clock() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods, reason = "a GPU is waited for in real time")]
fn pause() {
    std::thread::sleep(Duration::from_micros(20));
}

pub(super) fn failed(error: cuda::Error) -> Error {
    match error {
        cuda::Error::Argument(what) => Error::Argument(what),
        other => Error::System(other.to_string()),
    }
}

impl NcclComm {
    /// Joins a communicator on the queue's device. Rank 0's unique id reaches the others through `control`, which with
    /// `debug` also compares every call beforehand: a mismatch is then an error on all ranks, and not a hang.
    ///
    /// # Errors
    /// That NCCL is missing; that not all ranks came by the deadline; what NCCL says.
    pub fn join(
        queue: Queue,
        place: (Rank, u32),
        control: Box<dyn Control>,
        deadline: Duration,
        debug: bool,
    ) -> Result<NcclComm> {
        NcclComm::join_by(api::api(), queue, place, control, (deadline, debug))
    }

    /// As [`NcclComm::join`], by a library that was looked for.
    pub(super) fn join_by(
        library: Result<&'static Api>,
        queue: Queue,
        (rank, size): (Rank, u32),
        mut control: Box<dyn Control>,
        (deadline, debug): (Duration, bool),
    ) -> Result<NcclComm> {
        // Asked first, and told to all: a rank without NCCL must not leave the others waiting.
        let everywhere = control.all_gather(&[u8::from(library.is_ok())])?;
        let api = library?;
        if let Some(rank) = everywhere.iter().position(|there| there != &[1]) {
            return Err(Error::System(format!("rank {rank} has no NCCL; `allfold doctor` there says why")));
        }
        let mine = if rank == Rank(0) { UniqueId::by(api)?.0 } else { [0; 128] };
        let shown = control.all_gather(&mine)?;
        let id = shown.first().and_then(|id| <[u8; 128]>::try_from(&id[..]).ok());
        let id = id.ok_or_else(|| Error::System("rank 0 showed no unique id".into()))?;
        let mut comm = NcclComm::make_by(api, queue, (rank, size), UniqueId(id), deadline)?;
        comm.debug = debug.then_some(control);
        Ok(comm)
    }

    /// Joins by a unique id that is known already.
    ///
    /// # Errors
    /// As [`NcclComm::join`].
    pub fn make(queue: Queue, place: (Rank, u32), id: UniqueId, deadline: Duration) -> Result<NcclComm> {
        NcclComm::make_by(api::api()?, queue, place, id, deadline)
    }

    /// As [`NcclComm::make`], by a library that is there.
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
        // NCCL takes the calling thread's current device; a finished queue has made its own current.
        queue.finish().map_err(failed)?;
        let (mut raw, mut config) = (std::ptr::null_mut(), Config::without_blocking());
        // SAFETY: places for a handle and settings that live during the call.
        let answer =
            unsafe { (api.init)(&mut raw, size as c_int, RawId(id.0), rank.0 as c_int, &mut config) };
        let comm = NcclComm::held(api, raw, queue, (rank, size), deadline);
        comm.made("join", answer)
    }

    fn held(
        api: &'static Api,
        raw: RawComm,
        queue: Queue,
        (rank, size): (Rank, u32),
        deadline: Duration,
    ) -> NcclComm {
        NcclComm { api, raw, queue, rank, size, deadline, debug: None, sequence: 0, broken: None }
    }

    fn made(mut self, what: &str, answer: c_int) -> Result<NcclComm> {
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

    /// Before a call: whether the communicator is whole, and with `debug` whether all ranks call the same.
    pub(super) fn enter(&mut self, call: &str) -> Result<()> {
        self.whole()?;
        self.sequence += 1;
        let call = format!("{call} as operation {}", self.sequence);
        match self.debug.as_deref_mut().map(|control| agree(control, &call)) {
            Some(Err(error)) => Err(self.give_up(error)),
            _ => Ok(()),
        }
    }

    /// Whether nothing has gone wrong yet.
    pub(super) fn whole(&self) -> Result<()> {
        match &self.broken {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Waits until a call that does not block has been taken, or the deadline has passed.
    pub(super) fn settle(&mut self, what: &str, answer: c_int) -> Result<()> {
        let begun = clock();
        let mut answer = answer;
        while answer == IN_PROGRESS {
            pause();
            answer = self.asynchronous();
            if answer == IN_PROGRESS && begun.elapsed() > self.deadline {
                return Err(self.late(what));
            }
        }
        match answer {
            SUCCESS => Ok(()),
            answer => Err(self.refused(what, answer)),
        }
    }

    /// Waits until all that was issued is done on the device.
    ///
    /// # Errors
    /// The deadline, or what NCCL or the driver found on the way. The communicator fails then, and is aborted when it is
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
        let begun = clock();
        loop {
            match (self.api.idle)(queue) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(self.give_up(failed(error))),
            }
            self.poll(what)?;
            if begun.elapsed() > self.deadline {
                return Err(self.late(what));
            }
            pause();
        }
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

    fn asynchronous(&self) -> c_int {
        let mut state = SUCCESS;
        // SAFETY: a live communicator and a place for one integer.
        match unsafe { (self.api.async_error)(self.raw, &mut state) } {
            SUCCESS => state,
            answer => answer,
        }
    }

    fn refused(&mut self, what: &str, answer: c_int) -> Error {
        let (rank, what) = (self.rank, what.to_string());
        self.give_up(Error::Nccl { rank, what, code: answer, why: api::name(answer) })
    }

    fn late(&mut self, what: &str) -> Error {
        let (rank, after, what) = (self.rank, self.deadline, what.to_string());
        let suspects = (0..self.size).map(Rank).filter(|other| *other != rank).collect();
        self.give_up(Error::NcclDeadline { rank, what, suspects, after })
    }

    /// Remembers why it cannot be used any more.
    fn give_up(&mut self, error: Error) -> Error {
        self.broken.get_or_insert_with(|| error.to_string());
        error
    }

    /// Aborts what is under way, so that nothing of this rank waits in a kernel for ever. All captured graphs that hold its
    /// collectives are destroyed before. A second call does nothing.
    pub fn abandon(&mut self) {
        self.broken.get_or_insert_with(|| "it was abandoned".into());
        self.end(|api| api.abort);
    }

    /// Ends the handle by one of NCCL's ways, once.
    fn end(&mut self, way: impl Fn(&Api) -> unsafe extern "C" fn(RawComm) -> c_int) {
        if !self.raw.is_null() {
            // SAFETY: a live communicator, which is forgotten in the same breath.
            unsafe { way(self.api)(self.raw) };
            self.raw = std::ptr::null_mut();
        }
    }

    /// Ends every rank's part in what is under way. The others are told by NCCL, or by their deadline.
    pub fn abort(&mut self, why: &str) {
        let by = self.rank;
        self.give_up(Error::Aborted { by, why: why.into() });
        self.abandon();
    }

    /// A communicator of the ranks that gave the same colour, in order of `key`; `None` for a negative colour.
    ///
    /// # Errors
    /// The deadline, or what NCCL says.
    pub fn split(&mut self, color: i32, key: i32) -> Result<Option<NcclComm>> {
        self.enter("split()")?;
        let (mut raw, mut config) = (std::ptr::null_mut(), Config::without_blocking());
        let color = if color < 0 { -1 } else { color };
        // SAFETY: a live communicator, places for a handle and settings.
        let answer = unsafe { (self.api.split)(self.raw, color, key, &mut raw, &mut config) };
        // The parent is busy until its child is made.
        self.settle("split", answer)?;
        if color < 0 {
            return Ok(None);
        }
        let place = (self.rank, self.size);
        let child = NcclComm::held(self.api, raw, self.queue.clone(), place, self.deadline);
        child.made("split", IN_PROGRESS).map(Some)
    }

    /// A communicator without these ranks, made by those that are left after some of them failed: what is under way is
    /// aborted. Ranks are numbered anew, without gaps.
    ///
    /// # Errors
    /// That this NCCL is older than 2.27; the deadline; what NCCL says.
    pub fn shrink(mut self, without: &[Rank]) -> Result<NcclComm> {
        const ABORT: c_int = 1;
        let shrink = self.api.shrink.ok_or_else(|| {
            Error::System("this NCCL has no ncclCommShrink; 2.27 or newer is needed to shrink".into())
        })?;
        if without.contains(&self.rank)
            || without.iter().any(|rank| rank.0 >= self.size)
            || self.raw.is_null()
        {
            return Err(Error::Argument(format!("rank {} cannot shrink without {without:?}", self.rank)));
        }
        let mut gone: Vec<c_int> = without.iter().map(|rank| rank.0 as c_int).collect();
        gone.sort_unstable();
        gone.dedup();
        let (mut raw, mut config) = (std::ptr::null_mut(), Config::without_blocking());
        // SAFETY: a live communicator, a list of as many ranks as is said, places for a handle and settings.
        let answer =
            unsafe { shrink(self.raw, gone.as_ptr(), gone.len() as c_int, &mut raw, &mut config, ABORT) };
        self.settle("shrink", answer)?;
        let place = (self.rank, self.size);
        let child = NcclComm::held(self.api, raw, self.queue.clone(), place, self.deadline);
        let child = child.made("shrink", IN_PROGRESS);
        self.end(|api| api.abort);
        child
    }

    /// Ends the communicator in good order: waits for all that was issued, on every rank.
    ///
    /// # Errors
    /// The deadline, or what NCCL says.
    pub fn finalize(mut self) -> Result<()> {
        self.enter("finalize()")?;
        self.wait("finish what was issued")?;
        // SAFETY: a live communicator.
        let answer = unsafe { (self.api.finalize)(self.raw) };
        self.settle("finalize", answer)?;
        self.end(|api| api.destroy);
        Ok(())
    }

    /// Runs calls as one group: they start together, at its end.
    pub(super) fn group(&mut self, what: &str, body: impl FnOnce(&mut NcclComm) -> Result<()>) -> Result<()> {
        self.whole()?;
        // SAFETY: takes nothing.
        check("open a group", unsafe { (self.api.group_start)() })?;
        let inside = body(self);
        // SAFETY: the group was opened above, and is closed whatever became of its calls.
        let answer = unsafe { (self.api.group_end)() };
        inside?;
        self.settle(what, answer)
    }

    /// NCCL's own estimate, in microseconds, of what the calls of a body would take as a group; nothing is run.
    ///
    /// # Errors
    /// That this NCCL is older than 2.22.
    pub fn estimate(&mut self, body: impl FnOnce(&mut NcclComm) -> Result<()>) -> Result<f64> {
        let simulate = self.api.simulate.ok_or_else(|| {
            Error::System("this NCCL has no ncclGroupSimulateEnd; 2.22 or newer is needed to estimate".into())
        })?;
        // SAFETY: takes nothing.
        check("open a group", unsafe { (self.api.group_start)() })?;
        let inside = body(self);
        let mut info = SimInfo::new();
        // SAFETY: a place that says its own size; closes the group that was opened above.
        let answer = unsafe { simulate(&mut info) };
        inside?;
        self.settle("estimate a group", answer)?;
        Ok(f64::from(info.estimated_us))
    }
}

impl Drop for NcclComm {
    fn drop(&mut self) {
        // Not finalised: whatever is under way is not waited for.
        self.end(|api| api.abort);
    }
}
