//! Calls of NCCL's that may block, on a thread of their own, with a deadline.
//!
//! | call on a blocking communicator | waits for | made on |
//! |---|---|---|
//! | init, split, shrink | the other ranks | a thread of its own |
//! | a collective or message of a new kind (`Use`) | the peers' first call of that kind: connections are made then | a thread of its own |
//! | the same again | nothing: it is queued on the stream | the rank's thread |
//! | the same again, with `OUTSTANDING` calls unfinished | perhaps for room in NCCL's work queue | a thread of its own |
//! | simulated group | as a collective | a thread of its own |
//! | finalize, destroy | all work, and the other ranks of the host | a thread of its own |
//! | abort | captured graphs | a thread of its own |
//! | asynchronous error, rank, count | nothing | the rank's thread |
//!
//! A call that is not back by the deadline is left alone, and the communicator has failed: it is used no more, until it is
//! aborted from outside, by which the call returns.

use crate::{Error, Result};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// A handle of NCCL's or the driver's on its way to another thread.
pub(super) struct Sent<T>(T);

// SAFETY: NCCL's and the driver's handles may be used by any thread, one at a time, which is what sending means.
unsafe impl<T> Send for Sent<T> {}

impl<T: Copy> Sent<T> {
    pub fn new(handle: T) -> Sent<T> {
        Sent(handle)
    }

    /// As a method, so that a closure takes the whole and not the field.
    pub fn get(&self) -> T {
        self.0
    }
}

/// Makes a call on a thread of its own. `None`: it is not back by the deadline.
///
/// # Errors
/// That there is no thread, or that the call panicked.
pub(super) fn aside<R: Send + 'static>(
    deadline: Duration,
    call: impl FnOnce() -> R + Send + 'static,
) -> Result<Option<R>> {
    let (done, back) = sync_channel(1);
    let body = move || {
        // The receiver may have stopped waiting.
        let _ = done.send(call());
    };
    let thread = std::thread::Builder::new().name("nccl".into()).spawn(body);
    thread.map_err(|why| Error::System(format!("cannot start a thread for an NCCL call: {why}")))?;
    match back.recv_timeout(deadline) {
        Ok(answer) => Ok(Some(answer)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => {
            Err(Error::System("an NCCL call ended without a result".into()))
        }
    }
}
