//! NCCL calls that may block are made on a separate thread, with a deadline.
//!
//! | call on a blocking communicator | waits for | made on |
//! |---|---|---|
//! | init, split, shrink | the other ranks | a separate thread |
//! | a collective or message of a new kind (`Use`) | the peers' first call of that kind, to make connections | a separate thread |
//! | a call of a known kind | nothing: it is queued on the stream | the rank's thread |
//! | a call of a known kind, with `OUTSTANDING` calls unfinished | perhaps for space in NCCL's work queue | a separate thread |
//! | a captured call | the peers' same call, where NCCL registers buffers of graphs | a separate thread |
//! | simulated group | as a collective | a separate thread |
//! | finalize, destroy | all work, and the other ranks of the host | a separate thread |
//! | abort | captured graphs | a separate thread |
//! | asynchronous error, rank, count | nothing | the rank's thread |
//!
//! If a call has not returned by the deadline, the communicator has failed and is not used any more. An abort from another thread
//! makes the call return.

use crate::{Error, Result};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// A handle of NCCL or of the driver that is moved to another thread.
pub(super) struct Sent<T>(T);

// SAFETY: NCCL's and the driver's handles may be used by any thread, one at a time, which is what `Send` means.
unsafe impl<T> Send for Sent<T> {}

impl<T: Copy> Sent<T> {
    pub fn new(handle: T) -> Sent<T> {
        Sent(handle)
    }

    /// A method, so that a closure captures the whole value and not only the field.
    pub fn get(&self) -> T {
        self.0
    }
}

/// Makes a call on a separate thread. `None` if the call has not returned by the deadline.
///
/// # Errors
/// The thread cannot be started, or the call panicked.
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
        Err(RecvTimeoutError::Disconnected) => Err(Error::System(
            "the thread of an NCCL call ended before the call returned: it panicked".into(),
        )),
    }
}
