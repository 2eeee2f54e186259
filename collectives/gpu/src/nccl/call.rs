//! One NCCL call as data, so that the calls of a group can be recorded, made on another thread, or only estimated.

use super::api::{Answer, Api, CudaStream, IN_PROGRESS, RawComm, SUCCESS};
use std::ffi::{c_int, c_void};

/// A collective, or one half of a message, with device addresses. Counts are elements, or bytes for calls without a type.
#[derive(Clone, Copy, Debug)]
pub(super) enum NcclCall {
    AllReduce { from: u64, into: u64, n: usize, dtype: c_int, op: c_int },
    Broadcast { from: u64, into: u64, bytes: usize, root: c_int },
    Reduce { from: u64, into: u64, n: usize, dtype: c_int, op: c_int, root: c_int },
    AllGather { from: u64, into: u64, bytes: usize },
    ReduceScatter { from: u64, into: u64, n: usize, dtype: c_int, op: c_int },
    Send { from: u64, bytes: usize, to: c_int },
    Recv { into: u64, bytes: usize, of: c_int },
}

/// The connections that a call needs. NCCL makes a connection in the first call that needs it, which waits for the peers' first
/// calls. The algorithm of a collective, and with it the connections, follows from the collective, the size, the type and the
/// operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    Collective { kind: u8, n: usize, dtype: c_int, op: c_int },
    SendTo(c_int),
    RecvFrom(c_int),
}

/// `ncclDataType_t` of a byte.
pub(super) const BYTES: c_int = 1;

impl NcclCall {
    pub fn uses(&self) -> Use {
        let collective = |kind, n, dtype, op| Use::Collective { kind, n, dtype, op };
        match *self {
            NcclCall::AllReduce { n, dtype, op, .. } => collective(0, n, dtype, op),
            NcclCall::Broadcast { bytes, .. } => collective(1, bytes, BYTES, 0),
            NcclCall::Reduce { n, dtype, op, .. } => collective(2, n, dtype, op),
            NcclCall::AllGather { bytes, .. } => collective(3, bytes, BYTES, 0),
            NcclCall::ReduceScatter { n, dtype, op, .. } => collective(4, n, dtype, op),
            NcclCall::Send { to, .. } => Use::SendTo(to),
            NcclCall::Recv { of, .. } => Use::RecvFrom(of),
        }
    }

    /// Makes this call on a communicator and a stream.
    ///
    /// The communicator and stream are live and on one device; the addresses are memory of that device with as many elements as the call
    /// states, and stay valid until the stream has executed the call.
    unsafe fn make(self, api: &Api, comm: RawComm, stream: CudaStream) -> Answer {
        let (from, into) = (|at: u64| at as *const c_void, |at: u64| at as *mut c_void);
        // SAFETY: the caller guarantees the conditions under `# Safety`.
        unsafe {
            match self {
                NcclCall::AllReduce { from: a, into: b, n, dtype, op } => {
                    (api.all_reduce)(from(a), into(b), n, dtype, op, comm, stream)
                }
                NcclCall::Broadcast { from: a, into: b, bytes, root } => {
                    (api.broadcast)(from(a), into(b), bytes, BYTES, root, comm, stream)
                }
                NcclCall::Reduce { from: a, into: b, n, dtype, op, root } => {
                    (api.reduce)(from(a), into(b), n, dtype, op, root, comm, stream)
                }
                NcclCall::AllGather { from: a, into: b, bytes } => {
                    (api.all_gather)(from(a), into(b), bytes, BYTES, comm, stream)
                }
                NcclCall::ReduceScatter { from: a, into: b, n, dtype, op } => {
                    (api.reduce_scatter)(from(a), into(b), n, dtype, op, comm, stream)
                }
                NcclCall::Send { from: a, bytes, to } => (api.send)(from(a), bytes, BYTES, to, comm, stream),
                NcclCall::Recv { into: b, bytes, of } => (api.recv)(into(b), bytes, BYTES, of, comm, stream),
            }
        }
    }
}

/// Makes several calls: a single call directly, more calls as a group, which is closed even if a call fails.
///
/// # Safety
/// The requirements of `NcclCall::make`, for each call.
pub(super) unsafe fn run(api: &Api, comm: RawComm, stream: CudaStream, calls: &[NcclCall]) -> Answer {
    // SAFETY: the caller guarantees the conditions under `# Safety`.
    unsafe {
        match calls {
            [] => SUCCESS,
            [call] => call.make(api, comm, stream),
            calls => within_group(api, comm, stream, calls, || (api.group_end)()),
        }
    }
}

/// Makes the calls as a group, which `end` closes.
///
/// # Safety
/// The requirements of [`run`].
pub(super) unsafe fn within_group(
    api: &Api,
    comm: RawComm,
    stream: CudaStream,
    calls: &[NcclCall],
    end: impl FnOnce() -> Answer,
) -> Answer {
    // SAFETY: the function takes no arguments.
    let opened = unsafe { (api.group_start)() };
    if opened != SUCCESS {
        return opened;
    }
    // SAFETY: the caller guarantees the conditions under `# Safety`.
    let mut answers = calls.iter().map(|call| unsafe { call.make(api, comm, stream) });
    let refused = answers.find(|answer| !matches!(*answer, SUCCESS | IN_PROGRESS));
    let ended = end();
    refused.unwrap_or(ended)
}
