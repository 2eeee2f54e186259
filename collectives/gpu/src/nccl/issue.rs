//! The ways in which calls reach NCCL: on the rank's own thread if they cannot block, as a group, or as an estimate.

use super::api::{SUCCESS, SimInfo};
use super::aside::Sent;
use super::call::{self, NcclCall};
use super::comm::NcclComm;
use crate::driver::failed;
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of calls without a wait from which on NCCL's work queue may be full; it holds about a thousand small collectives. Each further
/// call costs a thread, by which it has a deadline.
pub const OUTSTANDING: u32 = 512;

impl NcclComm {
    /// Takes a call: records it if a group is open, otherwise issues it.
    pub(super) fn take(&mut self, what: &str, call: NcclCall) -> Result<()> {
        if self.open {
            self.posted.push(call);
            return Ok(());
        }
        self.posted.clear();
        self.posted.push(call);
        self.issue(what)
    }

    /// Makes the recorded calls.
    fn issue(&mut self, what: &str) -> Result<()> {
        let connected = self.posted.iter().all(|call| self.known.contains(&call.uses()));
        let captured = self.queue.machine().captures(self.queue.stream()).map_err(failed)?;
        let answer = match connected && !captured && self.outstanding < OUTSTANDING {
            // SAFETY: the communicator and the stream of this queue are live. Each address was a slice of its device's memory, which the
            // caller retains until the queue has executed the call.
            true => unsafe { call::run(self.api, self.raw, self.stream, &self.posted) },
            false => self.issue_aside(what)?,
        };
        self.outstanding = self.outstanding.saturating_add(1);
        self.settle(what, answer)
    }

    fn issue_aside(&mut self, what: &str) -> Result<super::api::Answer> {
        let (calls, stream) = (self.posted.clone(), Sent::new(self.stream));
        // SAFETY: the communicator, stream and buffers are valid as in `issue`; the thread's clone of the queue keeps the stream.
        let run = move |api: &_, raw| unsafe { call::run(api, raw, stream.get(), &calls) };
        let answer = self.blocking_call(what, run)?;
        if answer == SUCCESS {
            self.known.extend(self.posted.iter().map(NcclCall::uses));
        }
        Ok(answer)
    }

    /// Records the calls of a body. If one call is refused, none of them reaches NCCL.
    fn note(&mut self, body: impl FnOnce(&mut NcclComm) -> Result<()>) -> Result<()> {
        self.whole()?;
        self.posted.clear();
        self.open = true;
        let noted = body(self);
        self.open = false;
        noted
    }

    /// Runs calls as one group: all of them start together, at its end.
    pub(super) fn group(&mut self, what: &str, body: impl FnOnce(&mut NcclComm) -> Result<()>) -> Result<()> {
        if self.open {
            // Within an estimate or another group, the calls become part of that group.
            return body(self);
        }
        self.note(body)?;
        self.issue(what)
    }

    /// Issues the calls of a body as one group, which NCCL starts together.
    ///
    /// # Errors
    /// The errors of the body's calls.
    pub fn grouped(&mut self, body: impl FnOnce(&mut NcclComm) -> Result<()>) -> Result<()> {
        self.group("issue a group", body)
    }

    /// NCCL's own estimate of the time of a body's calls as a group, in microseconds; nothing is run.
    /// # Errors
    /// NCCL is older than 2.22, or gave no estimate.
    pub fn estimate(&mut self, body: impl FnOnce(&mut NcclComm) -> Result<()>) -> Result<f64> {
        const WHAT: &str = "estimate a group";
        let simulate = self.api.simulate.ok_or_else(|| {
            Error::System("this NCCL has no ncclGroupSimulateEnd; 2.22 or newer is needed to estimate".into())
        })?;
        self.note(body)?;
        let (calls, stream) = (self.posted.clone(), Sent::new(self.stream));
        let bits = Arc::new(AtomicU32::new((-1.0f32).to_bits()));
        let told = bits.clone();
        let answer = self.blocking_call(WHAT, move |api, raw| {
            let mut info = SimInfo::new();
            // SAFETY: `info` lives during the call and contains its own size.
            let end = || unsafe { simulate(&mut info) };
            // SAFETY: the communicator, stream and buffers are valid as in `issue`.
            let answer = unsafe { call::within_group(api, raw, stream.get(), &calls, end) };
            told.store(info.estimated_us.to_bits(), Ordering::Release);
            answer
        })?;
        self.settle(WHAT, answer)?;
        match f32::from_bits(bits.load(Ordering::Acquire)) {
            // A negative value is the result of a non-blocking communicator, which has run the group.
            us if us < 0.0 => Err(Error::System(
                "NCCL gave no estimate and ran the calls: NCCL_COMM_BLOCKING=0 is set, and must not be"
                    .into(),
            )),
            us => Ok(f64::from(us)),
        }
    }
}
