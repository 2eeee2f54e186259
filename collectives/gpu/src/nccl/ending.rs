//! The end of a communicator: split and shrink into smaller communicators, orderly end, abort.

use super::api::{Api, Config, IN_PROGRESS, RawComm, SUCCESS};
use super::aside::{Sent, aside};
use super::comm::{NcclComm, Region, blocking};
use super::control::{ComparedCalls, Control};
use super::deadline::until;
use crate::{Error, Rank, Result};
use allfold_cuda::Queue;
use std::ffi::c_int;
use std::time::Duration;

/// The colour of a rank that takes no part in a split (`NCCL_SPLIT_NOCOLOR`).
const NO_COLOR: c_int = -1;
/// The flag to end work in flight on the parent first (`NCCL_SHRINK_ABORT`).
const SHRINK_ABORT: c_int = 1;

impl NcclComm {
    /// A communicator of the ranks that gave the same colour, in order of `key`; `None` for a negative colour.
    ///
    /// # Errors
    /// The deadline passes, or NCCL fails.
    pub fn split(&mut self, color: i32, key: i32) -> Result<Option<NcclComm>> {
        let queue = self.queue.clone();
        self.split_to(&queue, (color, key), None)
    }

    /// [`NcclComm::split`] with the queue of the new communicator, on this one's device, and the channel by which its ranks compare calls.
    pub(crate) fn split_to(
        &mut self,
        queue: &Queue,
        (color, key): (i32, i32),
        control: Option<Box<dyn Control>>,
    ) -> Result<Option<NcclComm>> {
        self.enter(None, || "split()".into())?;
        let color = color.max(NO_COLOR);
        let made = self.child("split", queue, color != NO_COLOR, move |api, parent, place, config| {
            // SAFETY: the communicator is live; the place for the handle and the settings live during the call.
            unsafe { (api.split)(parent, color, key, place, config) }
        })?;
        Ok(made.map(|mut child| {
            child.calls =
                control.map_or_else(ComparedCalls::default, |control| ComparedCalls::through(control, false));
            child
        }))
    }

    /// A communicator without the ranks `without`, made by the remaining ranks after these have failed. Work in flight is ended. Ranks
    /// are renumbered without gaps. This communicator may have missed a deadline before; after an asynchronous error NCCL refuses to
    /// shrink.
    ///
    /// # Errors
    /// NCCL is older than 2.27; `without` is empty or names a wrong rank; a call is still within NCCL; the deadline; NCCL fails.
    pub fn shrink(mut self, without: &[Rank]) -> Result<NcclComm> {
        let shrink = self.api.shrink.ok_or_else(|| {
            Error::System("this NCCL has no ncclCommShrink; 2.27 or newer is needed to shrink".into())
        })?;
        let outside = without.iter().any(|rank| rank.0 >= self.size);
        if without.is_empty() || without.contains(&self.rank) || outside || self.raw.is_null() {
            return Err(Error::Argument(format!(
                "rank {} of {} cannot leave {without:?} out of the new communicator; name ranks of the group, at least one and not itself",
                self.rank, self.size
            )));
        }
        if self.stuck {
            let what = "a call is still within NCCL, which cannot shrink then: join a new communicator";
            return Err(Error::System(format!("rank {}: {what}", self.rank)));
        }
        if self.broken.is_some() && self.queue.machine().seeded(3) {
            // A test puts this mended defect back: a communicator that was aborted when the failure was noticed cannot shrink.
            self.abandon();
        }
        let mut gone: Vec<c_int> = without.iter().map(|rank| rank.0 as c_int).collect();
        gone.sort_unstable();
        gone.dedup();
        let queue = self.queue.clone();
        let child = self.child("shrink", &queue, true, move |_, parent, place, config| {
            // SAFETY: the communicator is live, the list has as many ranks as its length and NCCL may sort it; the place for the handle
            // and the settings live during the call.
            unsafe { shrink(parent, gone.as_mut_ptr(), gone.len() as c_int, place, config, SHRINK_ABORT) }
        });
        // The parent refuses calls from here on, even if making the child failed.
        self.broken.get_or_insert_with(|| "it was shrunk".into());
        child?.ok_or_else(|| Error::System("ncclCommShrink returned no communicator".into()))
    }

    /// Makes a communicator from this one. In non-blocking mode the parent stays in progress until the child is made, and only then NCCL
    /// stores the child's handle.
    fn child(
        &mut self,
        what: &'static str,
        queue: &Queue,
        wanted: bool,
        make: impl FnOnce(&Api, RawComm, *mut RawComm, *mut Config) -> c_int + Send + 'static,
    ) -> Result<Option<NcclComm>> {
        let place = Region::new();
        // NCCL does not give the child its parent's limit.
        let (to, blocking, blocks) = (place.clone(), blocking(&self.queue), self.blocks);
        let answer = self.blocking_call(what, move |api, parent| {
            let mut config = Config::new(blocking, blocks);
            let answer = make(api, parent, to.address(), &mut config);
            // NCCL may store the handle at any time after its call has returned, so the place for it is never freed.
            std::mem::forget(to);
            answer
        })?;
        let careless = self.queue.machine().seeded(3);
        match answer {
            SUCCESS | IN_PROGRESS if !careless => self.settle(what, IN_PROGRESS)?,
            answer => self.settle(what, answer)?,
        }
        if !wanted {
            return Ok(None);
        }
        if !careless && !until(self.deadline, || Ok(!place.get().is_null()))? {
            return Err(self.late(what));
        }
        let at = (self.rank, self.size);
        let mut child = NcclComm::held(self.api, place.get(), queue.clone(), at, self.deadline)?;
        child.blocks = self.blocks;
        child.made(what, IN_PROGRESS).map(Some)
    }

    /// Ends the communicator in an orderly way, after all issued work. Every rank must call this.
    ///
    /// # Errors
    /// The deadline passes, or NCCL fails.
    pub fn finalize(mut self) -> Result<()> {
        self.enter(None, || "finalize()".into())?;
        self.wait("finish what was issued")?;
        self.close()
    }

    /// Calls `ncclCommFinalize` and `ncclCommDestroy`.
    fn close(&mut self) -> Result<()> {
        // SAFETY: the communicator is live.
        let answer = self.blocking_call("finalize", |api, raw| unsafe { (api.finalize)(raw) })?;
        self.settle("finalize", answer)?;
        // SAFETY: the communicator is live, and is not used any more if the call succeeds.
        let answer =
            self.blocking_call("destroy the communicator", |api, raw| unsafe { (api.destroy)(raw) })?;
        if answer == SUCCESS {
            self.raw = std::ptr::null_mut();
        }
        self.settle("destroy the communicator", answer)
    }

    /// Ends this communicator's operations on this rank. The other ranks notice by NCCL or by their deadline.
    pub fn abort(&mut self, why: &str) {
        let by = self.rank;
        self.give_up(Error::Aborted { by, why: why.into() });
        self.abandon();
    }

    /// Aborts work in flight, so that nothing of this rank waits for ever in a kernel or in NCCL. All captured graphs that hold its
    /// collectives should be destroyed before; otherwise the abort continues in the background until they are. Returns whether the abort
    /// has ended, so that the collectives' memory may be freed. A second call does nothing and returns true in any case.
    pub fn abandon(&mut self) -> bool {
        self.broken.get_or_insert_with(|| "it was abandoned".into());
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        raw.is_null() || abort(self.api, Sent::new(raw), self.queue.clone(), self.deadline)
    }
}

/// Aborts a communicator on a separate thread: kernels and calls within NCCL end immediately. Returns whether the abort ended in time.
fn abort(api: &'static Api, raw: Sent<RawComm>, queue: Queue, deadline: Duration) -> bool {
    let body = move || {
        // The error is ignored because an abort needs no device: the loss of the device must not prevent it.
        let _ = (api.native)(&queue);
        // SAFETY: the communicator is live, and no other code uses it any more.
        unsafe { (api.abort)(raw.get()) }
    };
    matches!(aside(deadline, body), Ok(Some(_)))
}

impl Drop for NcclComm {
    /// Without a failure, ends in an orderly way: waits for all work, up to the deadline. After a failure or in a panic, aborts.
    fn drop(&mut self) {
        let healthy = self.broken.is_none() && !std::thread::panicking() && !self.raw.is_null();
        if healthy && !self.queue.machine().seeded(21) {
            let _ = self.close();
        }
        self.abandon();
    }
}
