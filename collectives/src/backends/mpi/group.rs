//! One rank's state of a communicator: MPI's communicator, the recorded calls, and the control messages of the other ranks.
//!
//! ```text
//! tag 0      control messages, which no rank waits for: failures, departures, operations in which ranks wait
//! tag 1      point-to-point messages
//! tag 2..    lanes of collectives
//! ```

use super::foreign::{Comm, Request};
use crate::backends::codec::{CONTROL, Reader, Writer};
use crate::contract::{Fingerprint, RemoteCallTable};
use crate::transport::Pool;
use crate::{Call, Error, Lost, Rank, Result};
use allfold_base::lock;
use std::ffi::c_int;
use std::sync::Mutex;

/// The tag of control messages.
const CONTROL_TAG: c_int = 0;
/// The first tag of data.
pub(super) const DATA_TAG: c_int = 1;
/// The largest tag that every MPI implementation supports.
pub(super) const LAST_TAG: c_int = 32_767;

const FAIL: u8 = 0;
const LEAVE: u8 = 1;
const ENTER: u8 = 2;

pub(super) struct Group {
    /// MPI's communicator, or the reason why there is none.
    comm: Result<Comm>,
    calls: Mutex<RemoteCallTable>,
    /// Control messages whose sends may not be complete yet.
    pending: Mutex<Vec<Request>>,
    pool: Pool,
}

impl Group {
    pub fn new(comm: Result<Comm>, pool: Pool) -> Group {
        let (me, size) = comm.as_ref().map_or((Rank(0), 1), |comm| (comm.rank(), comm.size()));
        let calls = Mutex::new(RemoteCallTable::new(me, size as usize));
        Group { comm, calls, pending: Mutex::default(), pool }
    }

    pub fn comm(&self) -> Result<&Comm> {
        self.comm.as_ref().map_err(Clone::clone)
    }

    /// The number of this rank.
    pub fn me(&self) -> Rank {
        self.comm.as_ref().map_or(Rank(0), Comm::rank)
    }

    pub fn calls<R>(&self, look: impl FnOnce(&mut RemoteCallTable) -> R) -> R {
        look(&mut lock(&self.calls))
    }

    /// Records an error and sends it to the other ranks, unless the group has failed before. Returns the group's first error.
    pub fn fail(&self, error: Error) -> Error {
        let (first, counts) = self.calls(|calls| (calls.fail(&error), calls.failure()));
        if first {
            let mut writer = Writer::default();
            writer.byte(FAIL).error(&error);
            self.send_to_all(&writer.0);
        }
        counts.unwrap_or(error)
    }

    /// Announces to the other ranks that this rank leaves.
    pub fn leave(&self, operations: u64, cause: &Lost) {
        let mut writer = Writer::default();
        writer.byte(LEAVE).word(operations).lost(cause);
        self.send_to_all(&writer.0);
    }

    /// Announces to the other ranks the operation that this rank waits in.
    pub fn announce(&self, call: &Call) {
        let mut writer = Writer::default();
        writer.byte(ENTER).call(call);
        self.send_to_all(&writer.0);
    }

    /// Sends a control message to all other ranks. A rank that cannot be reached is found by the deadlines.
    fn send_to_all(&self, bytes: &[u8]) {
        let Ok(comm) = &self.comm else { return };
        let mut pending = lock(&self.pending);
        pending.retain_mut(|request| matches!(request.test(), Ok(None)));
        for rank in (0..comm.size()).map(Rank).filter(|rank| *rank != comm.rank()) {
            let mut payload = self.pool.take(bytes.len());
            payload.copy_from_slice(bytes);
            pending.extend(comm.send(payload, rank, CONTROL_TAG));
        }
    }

    /// Whether all control messages were sent.
    pub fn is_sent(&self) -> bool {
        let mut pending = lock(&self.pending);
        pending.retain_mut(|request| matches!(request.test(), Ok(None)));
        pending.is_empty()
    }

    /// Receives the other ranks' control messages.
    ///
    /// # Errors
    /// The group's error, once it has failed.
    pub fn listen(&self) -> Result<()> {
        let comm = self.comm()?;
        let mut bytes = [0; CONTROL];
        while let Some((peer, len)) = comm.take(CONTROL_TAG, &mut bytes)? {
            if let Some(error) = self.handle(peer, &bytes[..len]) {
                self.fail(error);
            }
        }
        self.calls(|calls| calls.failure()).map_or(Ok(()), Err)
    }

    /// Handles a peer's control message; returns the error that follows from the message, if there is one.
    fn handle(&self, peer: Rank, bytes: &[u8]) -> Option<Error> {
        self.calls(|calls| {
            let mut reader = Reader { rest: bytes, known: calls.known };
            match reader.byte()? {
                FAIL => {
                    calls.fail(&reader.error()?);
                    None
                }
                LEAVE => {
                    let operations = reader.word()?;
                    calls.leave(peer, operations, reader.lost()?)
                }
                ENTER => {
                    let (sequence, theirs) = (reader.word()?, Fingerprint(*reader.rest.first_chunk()?));
                    calls.announced(peer, sequence, theirs)
                }
                _ => None,
            }
        })
    }
}
