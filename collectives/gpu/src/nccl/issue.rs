//! How calls reach NCCL: on the rank's own thread where they cannot block, as a group, or as an estimate.

use super::api::{SUCCESS, SimInfo};
use super::aside::Sent;
use super::call::{self, NcclCall};
use super::comm::NcclComm;
use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Calls without a wait in between from which on NCCL's queue of work may be full. It holds some thousand small collectives.
const OUTSTANDING: u32 = 512;

impl NcclComm {
    /// Takes a call: notes it where a group is open, else makes it.
    pub(super) fn take(&mut self, what: &str, call: NcclCall) -> Result<()> {
        if self.open {
            self.posted.push(call);
            return Ok(());
        }
        self.posted.clear();
        self.posted.push(call);
        self.issue(what)
    }

    /// Makes the calls that are noted.
    fn issue(&mut self, what: &str) -> Result<()> {
        let connected = self.posted.iter().all(|call| self.known.contains(&call.uses()));
        let answer = match connected && self.outstanding < OUTSTANDING {
            // SAFETY: a live communicator and stream of this queue; each address was a slice of its device's memory, which
            // the caller keeps until the queue has passed.
            true => unsafe { call::run(self.api, self.raw, self.stream, &self.posted) },
            false => self.issue_aside(what)?,
        };
        self.outstanding = self.outstanding.saturating_add(1);
        self.settle(what, answer)
    }

    fn issue_aside(&mut self, what: &str) -> Result<super::api::Answer> {
        let (calls, stream) = (self.posted.clone(), Sent::new(self.stream));
        // SAFETY: as in `issue`; the queue lives as long as the thread, which holds a clone of it.
        let run = move |api: &_, raw| unsafe { call::run(api, raw, stream.get(), &calls) };
        let answer = self.blocking_call(what, run)?;
        if answer == SUCCESS {
            self.known.extend(self.posted.iter().map(NcclCall::uses));
        }
        Ok(answer)
    }

    /// Notes the calls of a body. None of them has reached NCCL if one is refused.
    fn note(&mut self, body: impl FnOnce(&mut NcclComm) -> Result<()>) -> Result<()> {
        self.whole()?;
        self.posted.clear();
        self.open = true;
        let noted = body(self);
        self.open = false;
        noted
    }

    /// Runs calls as one group: they start together, at its end.
    pub(super) fn group(&mut self, what: &str, body: impl FnOnce(&mut NcclComm) -> Result<()>) -> Result<()> {
        if self.open {
            // Within an estimate, or another group: these calls are part of it.
            return body(self);
        }
        self.note(body)?;
        self.issue(what)
    }

    /// NCCL's own estimate, in microseconds, of what the calls of a body would take as a group; nothing is run.
    ///
    /// # Errors
    /// That this NCCL is older than 2.22, or gave no estimate.
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
            // SAFETY: a place that says its own size; as in `issue`.
            let end = || unsafe { simulate(&mut info) };
            // SAFETY: as in `issue`.
            let answer = unsafe { call::within_group(api, raw, stream.get(), &calls, end) };
            told.store(info.estimated_us.to_bits(), Ordering::Release);
            answer
        })?;
        self.settle(WHAT, answer)?;
        match f32::from_bits(bits.load(Ordering::Acquire)) {
            // What a communicator that does not block leaves: it has run the group.
            us if us < 0.0 => Err(Error::System(
                "NCCL gave no estimate and ran the calls: NCCL_COMM_BLOCKING=0 is set, and must not be"
                    .into(),
            )),
            us => Ok(f64::from(us)),
        }
    }
}
