//! Safe wrappers of the MPI functions in use. A request owns its buffer until MPI has finished with it; if the request is dropped
//! before that, the buffer is leaked.

use crate::transport::Payload;
use crate::{Call, Collective, DType, Error, Operation, Rank, ReduceOp, Result};
use mpi::ffi;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// A communicator of MPI. It is never freed: jobs make few communicators, and MPI frees them at its end.
pub(super) struct Comm {
    raw: ffi::MPI_Comm,
    rank: c_int,
    size: c_int,
}

// SAFETY: a communicator exists only if MPI was initialised for calls from many threads at once.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

/// The result of an MPI call as a `Result`.
fn settle(what: &str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let (mut text, mut len) = ([0u8; 512], 0);
    // SAFETY: Open MPI writes at most 256 bytes, MPICH 512, and returns how many.
    let known = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut len) } == 0;
    let said =
        String::from_utf8_lossy(&text[..usize::try_from(len).unwrap_or(0).min(text.len())]).into_owned();
    let said = if known { said } else { format!("error {code}") };
    Err(Error::System(format!("MPI did not {what}: {}", said.trim_end_matches('\0'))))
}

/// A number of bytes, elements or ranks as MPI takes it.
fn count(number: usize) -> Result<c_int> {
    c_int::try_from(number).map_err(|_| {
        Error::Argument(format!(
            "MPI takes at most 2147483647 bytes, or elements of a reduction, in one call, not {number}; take a smaller buffer, \
             or an algorithm in smaller segments (`--algo`, `--segment`)"
        ))
    })
}

/// MPI's type of an element; `None` for half precision.
fn datatype(dtype: DType) -> Option<ffi::MPI_Datatype> {
    // SAFETY: constants of the library.
    Some(unsafe {
        match dtype {
            DType::F64 => ffi::RSMPI_DOUBLE,
            DType::F32 => ffi::RSMPI_FLOAT,
            DType::I8 => ffi::RSMPI_INT8_T,
            DType::I16 => ffi::RSMPI_INT16_T,
            DType::I32 => ffi::RSMPI_INT32_T,
            DType::I64 => ffi::RSMPI_INT64_T,
            DType::U8 => ffi::RSMPI_UINT8_T,
            DType::F16 | DType::Bf16 => return None,
        }
    })
}

/// MPI's operator. An average is a sum that is divided afterwards.
fn operator(op: ReduceOp) -> ffi::MPI_Op {
    // SAFETY: constants of the library.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Avg => ffi::RSMPI_SUM,
            ReduceOp::Prod => ffi::RSMPI_PROD,
            ReduceOp::Min => ffi::RSMPI_MIN,
            ReduceOp::Max => ffi::RSMPI_MAX,
        }
    }
}

fn bytes() -> ffi::MPI_Datatype {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_UINT8_T }
}

/// Starts MPI in this process, for calls from many threads.
pub(super) fn start() -> Result<Comm> {
    let (mut begun, mut over, mut given) = (0, 0, 0);
    // SAFETY: both functions may be called at any time.
    unsafe {
        settle("say whether it runs", ffi::MPI_Initialized(&mut begun))?;
        settle("say whether it is over", ffi::MPI_Finalized(&mut over))?;
    }
    if begun != 0 || over != 0 {
        return Err(Error::System("MPI was started in this process before, and can start only once".into()));
    }
    // SAFETY: MPI has not been started; no arguments are passed on; MPI's constants exist before it starts.
    unsafe {
        let wanted = ffi::RSMPI_THREAD_MULTIPLE;
        settle("start", ffi::MPI_Init_thread(null_mut(), null_mut(), wanted, &mut given))?;
        if given < wanted {
            return Err(Error::System(
                "this MPI was built without MPI_THREAD_MULTIPLE, which is needed".into(),
            ));
        }
        let mut raw = ffi::RSMPI_COMM_NULL;
        settle("copy its communicator", ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut raw))?;
        Comm::adopt(raw)
    }
}

/// Ends MPI in this process. Every rank must call this.
pub(super) fn finish() -> Result<()> {
    // SAFETY: MPI was started, and its last owner calls this once, when no call of MPI is in progress.
    unsafe { settle("end", ffi::MPI_Finalize()) }
}

impl Comm {
    /// # Safety
    /// `raw` is a communicator of this process.
    unsafe fn adopt(raw: ffi::MPI_Comm) -> Result<Comm> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the caller guarantees that `raw` is a communicator of this process.
        unsafe {
            settle("set an error handler", ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN))?;
            settle("say its rank", ffi::MPI_Comm_rank(raw, &mut rank))?;
            settle("say its size", ffi::MPI_Comm_size(raw, &mut size))?;
        }
        Ok(Comm { raw, rank, size })
    }

    pub fn rank(&self) -> Rank {
        Rank(self.rank as u32)
    }

    pub fn size(&self) -> u32 {
        self.size as u32
    }

    /// A communicator of these members, in this order. All of them must call this, and the call has no deadline.
    pub fn part(&self, members: &[Rank], tag: u16) -> Result<Comm> {
        let ranks: Vec<c_int> = members.iter().map(|rank| rank.0 as c_int).collect();
        // SAFETY: the groups are this process's own; `ranks` outlives the call that reads it.
        unsafe {
            let (mut all, mut some) = (ffi::RSMPI_GROUP_NULL, ffi::RSMPI_GROUP_NULL);
            let mut raw = ffi::RSMPI_COMM_NULL;
            settle("name its group", ffi::MPI_Comm_group(self.raw, &mut all))?;
            let made = ffi::MPI_Group_incl(all, count(ranks.len())?, ranks.as_ptr(), &mut some);
            settle("make a group", made)?;
            settle(
                "make a communicator",
                ffi::MPI_Comm_create_group(self.raw, some, (tag >> 1).into(), &mut raw),
            )?;
            settle("free a group", ffi::MPI_Group_free(&mut some))?;
            settle("free a group", ffi::MPI_Group_free(&mut all))?;
            Comm::adopt(raw)
        }
    }

    /// Sends a payload.
    pub fn send(&self, payload: Payload, to: Rank, tag: c_int) -> Result<Request> {
        let len = count(payload.len())?;
        let data = payload.as_ptr();
        let mut raw = null();
        // SAFETY: the request owns the payload, which neither moves nor changes until MPI has finished with it.
        let sent =
            unsafe { ffi::MPI_Isend(data.cast(), len, bytes(), to.0 as c_int, tag, self.raw, &mut raw) };
        settle("send", sent).map(|()| Request { raw: Some(raw), payload: Some(payload), second: None })
    }

    /// Receives a message into a payload that is at least as long.
    pub fn recv(&self, payload: Payload, from: Rank, tag: c_int) -> Result<Request> {
        let len = count(payload.len())?;
        let mut payload = payload;
        let data = payload.as_mut_ptr();
        let mut raw = null();
        // SAFETY: as in `send`; nothing reads or writes the payload meanwhile.
        let posted =
            unsafe { ffi::MPI_Irecv(data.cast(), len, bytes(), from.0 as c_int, tag, self.raw, &mut raw) };
        settle("receive", posted).map(|()| Request { raw: Some(raw), payload: Some(payload), second: None })
    }

    /// Receives a message of this tag that has arrived from any rank, if there is one; returns its sender and the number of bytes of
    /// `into` that it fills.
    pub fn take(&self, tag: c_int, into: &mut [u8]) -> Result<Option<(Rank, usize)>> {
        let mut found = 0;
        let mut status = MaybeUninit::<ffi::MPI_Status>::zeroed();
        // SAFETY: the message is received by this thread alone, into memory of the length that is stated.
        unsafe {
            let mut message = ffi::RSMPI_MESSAGE_NULL;
            let any = ffi::RSMPI_ANY_SOURCE;
            let looked = ffi::MPI_Improbe(any, tag, self.raw, &mut found, &mut message, status.as_mut_ptr());
            settle("look for messages", looked)?;
            if found == 0 {
                return Ok(None);
            }
            let room = count(into.len())?;
            let data = into.as_mut_ptr().cast();
            let got = ffi::MPI_Mrecv(data, room, bytes(), &mut message, status.as_mut_ptr());
            settle("receive", got)?;
            let status = status.assume_init();
            Ok(Some((Rank(status.MPI_SOURCE as u32), filled(&status)?.min(into.len()))))
        }
    }

    /// Starts a barrier.
    pub fn barrier(&self) -> Result<Request> {
        let mut raw = null();
        // SAFETY: no memory is involved.
        let begun = unsafe { ffi::MPI_Ibarrier(self.raw, &mut raw) };
        settle("start a barrier", begun).map(|()| Request { raw: Some(raw), payload: None, second: None })
    }

    /// Starts a collective of MPI's own: from `from` (empty for a broadcast and a barrier) into `to`. `block`: the length of one rank's
    /// block, in elements if the collective reduces, else in bytes. Buffers that are too short are an error.
    pub fn collective(
        &self,
        what: Native,
        from: Option<Payload>,
        to: Payload,
        block: usize,
    ) -> Result<Request> {
        let n = count(block)?;
        let (kind, each) = match what {
            Native::AllReduce(dtype, _) | Native::Reduce(dtype, ..) | Native::ReduceScatter(dtype, _) => {
                let unknown =
                    || Error::Argument(format!("MPI does not reduce {dtype}; a scheduled algorithm does"));
                (datatype(dtype).ok_or_else(unknown)?, dtype.size())
            }
            _ => (bytes(), 1),
        };
        let own = block * each;
        let whole = own * self.size as usize;
        let holds = |payload: &Payload, bytes: usize| payload.len() >= bytes;
        let given = from.as_ref().is_none_or(|from| match what {
            Native::Scatter(root) => self.rank() != root || holds(from, whole),
            Native::ReduceScatter(..) | Native::AllToAll => holds(from, whole),
            _ => holds(from, own),
        });
        let got = match what {
            Native::AllGather | Native::AllToAll => holds(&to, whole),
            Native::Gather(root) => self.rank() != root || holds(&to, whole),
            _ => holds(&to, own),
        };
        let needs = !matches!(what, Native::Broadcast(_) | Native::Barrier);
        if !given || !got || (needs && from.is_none()) {
            return Err(Error::System("a buffer of a native collective is too short".into()));
        }
        let (mut payload, second) = (to, from);
        let to: *mut c_void = payload.as_mut_ptr().cast();
        let from: *const c_void = second.as_ref().map_or(std::ptr::null(), |from| from.as_ptr().cast());
        let (raw, comm) = (&mut null(), self.raw);
        // SAFETY: both buffers are as long as the collective needs, as was just checked, and belong to the request until it is
        // complete.
        let begun = unsafe {
            match what {
                Native::AllReduce(_, op) => ffi::MPI_Iallreduce(from, to, n, kind, operator(op), comm, raw),
                Native::Reduce(_, op, root) => {
                    ffi::MPI_Ireduce(from, to, n, kind, operator(op), root.0 as c_int, comm, raw)
                }
                Native::ReduceScatter(_, op) => {
                    ffi::MPI_Ireduce_scatter_block(from, to, n, kind, operator(op), comm, raw)
                }
                Native::Broadcast(root) => ffi::MPI_Ibcast(to, n, kind, root.0 as c_int, comm, raw),
                Native::AllGather => ffi::MPI_Iallgather(from, n, kind, to, n, kind, comm, raw),
                Native::AllToAll => ffi::MPI_Ialltoall(from, n, kind, to, n, kind, comm, raw),
                Native::Gather(root) => {
                    ffi::MPI_Igather(from, n, kind, to, n, kind, root.0 as c_int, comm, raw)
                }
                Native::Scatter(root) => {
                    ffi::MPI_Iscatter(from, n, kind, to, n, kind, root.0 as c_int, comm, raw)
                }
                Native::Barrier => ffi::MPI_Ibarrier(comm, raw),
            }
        };
        settle("start a collective", begun)?;
        Ok(Request { raw: Some(*raw), payload: Some(payload), second })
    }
}

/// A collective of MPI's own. Collectives that do not reduce take bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Native {
    AllReduce(DType, ReduceOp),
    Reduce(DType, ReduceOp, Rank),
    ReduceScatter(DType, ReduceOp),
    Broadcast(Rank),
    AllGather,
    AllToAll,
    Gather(Rank),
    Scatter(Rank),
    Barrier,
}

impl Native {
    /// MPI's own collective for this call; `None` if MPI has none, or has no such element type.
    pub fn of(call: &Call) -> Option<Native> {
        let Operation::Collective(collective) = call.operation else { return None };
        let (dtype, op) = (call.dtype, call.op.unwrap_or(ReduceOp::Sum));
        let root = call.root.unwrap_or(Rank(0));
        if collective.reduces() {
            datatype(dtype)?;
        }
        Some(match collective {
            Collective::AllReduce => Native::AllReduce(dtype, op),
            Collective::Reduce => Native::Reduce(dtype, op, root),
            Collective::ReduceScatter => Native::ReduceScatter(dtype, op),
            Collective::Broadcast => Native::Broadcast(root),
            Collective::AllGather => Native::AllGather,
            Collective::AllToAll => Native::AllToAll,
            Collective::Gather => Native::Gather(root),
            Collective::Scatter => Native::Scatter(root),
            Collective::Barrier => Native::Barrier,
            _ => return None,
        })
    }
}

fn filled(status: &ffi::MPI_Status) -> Result<usize> {
    let mut len = 0;
    // SAFETY: the status is of a message of bytes.
    settle("count received bytes", unsafe { ffi::MPI_Get_count(status, bytes(), &mut len) })?;
    // Only a receive has a length; the length of another operation may be undefined.
    Ok(usize::try_from(len).unwrap_or(0))
}

/// The handle that means no request.
fn null() -> ffi::MPI_Request {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}

/// An MPI request, and the memory that MPI reads or writes until it is complete.
pub(super) struct Request {
    /// MPI's request; `None` once it is complete.
    raw: Option<ffi::MPI_Request>,
    payload: Option<Payload>,
    second: Option<Payload>,
}

// SAFETY: MPI was initialised for calls from many threads at once; a request is used by one at a time.
unsafe impl Send for Request {}

impl Request {
    /// Whether the request is complete: then the number of received bytes, if it was a receive.
    pub fn test(&mut self) -> Result<Option<usize>> {
        let Some(raw) = &mut self.raw else { return Ok(Some(0)) };
        let mut over = 0;
        let mut status = MaybeUninit::<ffi::MPI_Status>::zeroed();
        // SAFETY: the request belongs to `self` alone and is not complete.
        let tested = unsafe { ffi::MPI_Test(raw, &mut over, status.as_mut_ptr()) };
        if tested != 0 || over != 0 {
            // The request is complete, with or without success.
            self.raw = None;
        }
        settle("finish what was under way", tested)?;
        if over == 0 {
            return Ok(None);
        }
        // SAFETY: MPI has filled the status.
        filled(&unsafe { status.assume_init() }).map(Some)
    }

    /// The buffer of a completed request.
    pub fn into_payload(mut self) -> Option<Payload> {
        if self.raw.is_none() { self.payload.take() } else { None }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.raw.is_some() {
            // MPI may still read or write this memory, so it is leaked.
            std::mem::forget(self.payload.take());
            std::mem::forget(self.second.take());
        }
    }
}
