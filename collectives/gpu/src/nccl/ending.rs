//! What becomes of a communicator: smaller ones made of it, an end in good order, an abort.

use super::api::{Api, Config, IN_PROGRESS, RawComm, SUCCESS};
use super::aside::{Sent, aside};
use super::comm::{NcclComm, Region, blocking};
use super::deadline::until;
use crate::{Error, Rank, Result};
use std::ffi::c_int;
use std::time::Duration;

/// NCCL_SPLIT_NOCOLOR.
const NO_COLOR: c_int = -1;
/// NCCL_SHRINK_ABORT: what is under way on the parent is ended first.
const SHRINK_ABORT: c_int = 1;

impl NcclComm {
    /// A communicator of the ranks that gave the same colour, in order of `key`; `None` for a negative colour.
    ///
    /// # Errors
    /// The deadline, or what NCCL says.
    pub fn split(&mut self, color: i32, key: i32) -> Result<Option<NcclComm>> {
        self.enter(None, || "split()".into())?;
        let color = color.max(NO_COLOR);
        self.child("split", color != NO_COLOR, move |api, parent, place, config| {
            // SAFETY: a live communicator, a place and settings that live during the call.
            unsafe { (api.split)(parent, color, key, place, config) }
        })
    }

    /// A communicator without these ranks, made by those that are left after some of them failed: what is under way is
    /// ended. Ranks are numbered anew, without gaps. This communicator may have failed by a deadline before; after an
    /// asynchronous error NCCL refuses to shrink.
    ///
    /// # Errors
    /// That this NCCL is older than 2.27; the deadline; what NCCL says.
    pub fn shrink(mut self, without: &[Rank]) -> Result<NcclComm> {
        let shrink = self.api.shrink.ok_or_else(|| {
            Error::System("this NCCL has no ncclCommShrink; 2.27 or newer is needed to shrink".into())
        })?;
        let strangers = without.iter().any(|rank| rank.0 >= self.size);
        if without.is_empty() || without.contains(&self.rank) || strangers || self.raw.is_null() {
            return Err(Error::Argument(format!("rank {} cannot shrink without {without:?}", self.rank)));
        }
        if self.stuck {
            let what = "a call is still within NCCL, which cannot shrink then: join a new communicator";
            return Err(Error::System(format!("rank {}: {what}", self.rank)));
        }
        if self.broken.is_some() && self.queue.machine().seeded(3) {
            // What the defect did: the communicator was aborted when the failure was noticed.
            self.abandon();
        }
        let mut gone: Vec<c_int> = without.iter().map(|rank| rank.0 as c_int).collect();
        gone.sort_unstable();
        gone.dedup();
        let child = self.child("shrink", true, move |_, parent, place, config| {
            // SAFETY: a live communicator, a list of as many ranks as is said, which NCCL may sort, a place and settings
            // that live during the call.
            unsafe { shrink(parent, gone.as_mut_ptr(), gone.len() as c_int, place, config, SHRINK_ABORT) }
        });
        // After this the parent refuses calls, even if making the child failed.
        self.broken.get_or_insert_with(|| "it was shrunk".into());
        child?.ok_or_else(|| Error::System("ncclCommShrink returned no communicator".into()))
    }

    /// Makes a communicator of this one. Even where calls do not block, NCCL keeps the parent in progress until the child is
    /// made, and stores the child's handle then.
    fn child(
        &mut self,
        what: &'static str,
        wanted: bool,
        make: impl FnOnce(&Api, RawComm, *mut RawComm, *mut Config) -> c_int + Send + 'static,
    ) -> Result<Option<NcclComm>> {
        let place = Region::new();
        let (to, blocks) = (place.clone(), blocking(&self.queue));
        let answer = self.blocking_call(what, move |api, parent| {
            let mut config = Config::new(blocks);
            let answer = make(api, parent, to.address(), &mut config);
            // NCCL may store the handle after its call has returned, at any time: the place is never given back.
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
        let child = NcclComm::held(self.api, place.get(), self.queue.clone(), at, self.deadline)?;
        child.made(what, IN_PROGRESS).map(Some)
    }

    /// Ends the communicator in good order: waits for all that was issued, on every rank.
    ///
    /// # Errors
    /// The deadline, or what NCCL says.
    pub fn finalize(mut self) -> Result<()> {
        self.enter(None, || "finalize()".into())?;
        self.wait("finish what was issued")?;
        self.close()
    }

    /// `ncclCommFinalize` and `ncclCommDestroy`.
    fn close(&mut self) -> Result<()> {
        // SAFETY: a live communicator.
        let answer = self.blocking_call("finalize", |api, raw| unsafe { (api.finalize)(raw) })?;
        self.settle("finalize", answer)?;
        // SAFETY: a live communicator, which is used no more if the call succeeds.
        let answer =
            self.blocking_call("destroy the communicator", |api, raw| unsafe { (api.destroy)(raw) })?;
        if answer == SUCCESS {
            self.raw = std::ptr::null_mut();
        }
        self.settle("destroy the communicator", answer)
    }

    /// Ends this communicator's operations on this rank. NCCL tells the other ranks, or their deadline does.
    pub fn abort(&mut self, why: &str) {
        let by = self.rank;
        self.give_up(Error::Aborted { by, why: why.into() });
        self.abandon();
    }

    /// Aborts what is under way, so that nothing of this rank waits in a kernel or within NCCL for ever. All captured graphs
    /// that hold its collectives are destroyed before; where one is not, the abort goes on beside until it is. Returns
    /// whether the abort has ended, and memory that the collectives use may be given back. A second call does nothing.
    pub fn abandon(&mut self) -> bool {
        self.broken.get_or_insert_with(|| "it was abandoned".into());
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        raw.is_null() || abort(self.api, Sent::new(raw), self.queue.clone(), self.deadline)
    }
}

/// Aborts from a thread of its own: kernels end at once, and so do calls that are within NCCL.
fn abort(
    api: &'static Api,
    raw: Sent<RawComm>,
    queue: allfold_kernels::cuda::Queue,
    deadline: Duration,
) -> bool {
    let body = move || {
        // An abort needs no device of its own, so a device that is lost does not keep it from being made.
        let _ = (api.native)(&queue);
        // SAFETY: a live communicator, which nobody uses any more.
        unsafe { (api.abort)(raw.get()) }
    };
    matches!(aside(deadline, body), Ok(Some(_)))
}

impl Drop for NcclComm {
    /// In good order where nothing has failed: all work is waited for, up to the deadline. Else by an abort.
    fn drop(&mut self) {
        let healthy = self.broken.is_none() && !std::thread::panicking() && !self.raw.is_null();
        if healthy && !self.queue.machine().seeded(21) {
            let _ = self.close();
        }
        self.abandon();
    }
}
