//! The NCCL stand-in's collective functions, and its function tables for several NCCL versions.

use super::super::api::{Answer, Api, CudaStream, RawComm, SUCCESS};
use super::super::numbers::{number, operator};
use super::kernel::Op;
use super::options::StandIn;
use super::traffic::Said;
use super::world::{Comm, find, native, on};
use super::{INVALID_ARGUMENT, buffers, ending, group, making};
use crate::{DType, ReduceOp};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

unsafe extern "C" fn async_error(comm: RawComm, state: *mut Answer) -> Answer {
    let Some(comm) = find(comm) else { return INVALID_ARGUMENT };
    // SAFETY: the caller promises that the argument points to one integer.
    unsafe { *state = comm.state.load(Ordering::Acquire) };
    SUCCESS
}

unsafe extern "C" fn user_rank(comm: RawComm, rank: *mut c_int) -> Answer {
    on(comm, |comm| {
        // SAFETY: the caller promises that the argument points to one integer.
        unsafe { *rank = comm.rank as c_int };
        SUCCESS
    })
}

unsafe extern "C" fn count(comm: RawComm, count: *mut c_int) -> Answer {
    on(comm, |comm| {
        // SAFETY: the caller promises that the argument points to one integer.
        unsafe { *count = comm.group.size as c_int };
        SUCCESS
    })
}

/// The communicator of a handle, if it is ready and `rank` is one of its ranks, not necessarily its own.
fn checked(comm: RawComm, rank: c_int) -> Result<Arc<Comm>, Answer> {
    let comm = find(comm).ok_or(INVALID_ARGUMENT)?;
    match comm.ready() {
        SUCCESS if (0..comm.group.size as c_int).contains(&rank) => Ok(comm),
        SUCCESS => Err(INVALID_ARGUMENT),
        answer => Err(answer),
    }
}

/// The size in bytes of an element type; an error if the type or the operator is unknown.
fn width(dtype: c_int, op: c_int) -> Result<usize, Answer> {
    let known = ReduceOp::ALL.into_iter().any(|known| operator(known) == op);
    let dtype = DType::ALL.into_iter().find(|known| number(*known) == Some(dtype));
    dtype.filter(|_| known).map(DType::size).ok_or(INVALID_ARGUMENT)
}

/// Issues a collective in which each rank contributes `n` elements, or if `blocked` `n` elements for every rank.
fn meet(
    (kind, root): (&'static str, c_int),
    (from, into): (*const c_void, *mut c_void),
    (n, dtype, op): (usize, c_int, c_int),
    blocked: bool,
    comm: RawComm,
    stream: CudaStream,
) -> Answer {
    let call = || {
        let comm = checked(comm, root)?;
        let blocks = if blocked { comm.group.size } else { 1 };
        let bytes = n * width(dtype, op)? * blocks;
        let said = Said { kind, bytes, dtype, op, root: root as usize };
        Ok((comm, stream as u64, Op::Meet { said, from: from as u64, into: into as u64 }))
    };
    group::give(call())
}

/// Functions of collectives, with the arguments of nccl.h before the communicator and the stream.
macro_rules! collectives {
    ($($name:ident($($argument:ident: $type:ty),*) = $root:expr, $numbers:expr, $blocked:literal;)*) => {
        $(unsafe extern "C" fn $name(
            from: *const c_void, into: *mut c_void, $($argument: $type,)* comm: RawComm, stream: CudaStream,
        ) -> Answer {
            meet((stringify!($name), $root), (from, into), $numbers, $blocked, comm, stream)
        })*
    };
}

collectives! {
    all_reduce(n: usize, dtype: c_int, op: c_int) = 0, (n, dtype, op), false;
    broadcast(n: usize, dtype: c_int, root: c_int) = root, (n, dtype, 0), false;
    reduce(n: usize, dtype: c_int, op: c_int, root: c_int) = root, (n, dtype, op), false;
    all_gather(n: usize, dtype: c_int) = 0, (n, dtype, 0), false;
    reduce_scatter(n: usize, dtype: c_int, op: c_int) = 0, (n, dtype, op), true;
}

unsafe extern "C" fn send(
    from: *const c_void,
    n: usize,
    dtype: c_int,
    to: c_int,
    comm: RawComm,
    stream: CudaStream,
) -> Answer {
    let call = || {
        let op = Op::Send { from: from as u64, bytes: n * width(dtype, 0)?, to: to as usize };
        Ok((checked(comm, to)?, stream as u64, op))
    };
    group::give(call())
}

unsafe extern "C" fn recv(
    into: *mut c_void,
    n: usize,
    dtype: c_int,
    of: c_int,
    comm: RawComm,
    stream: CudaStream,
) -> Answer {
    let call = || {
        let op = Op::Receive { into: into as u64, bytes: n * width(dtype, 0)?, of: of as usize };
        Ok((checked(comm, of)?, stream as u64, op))
    };
    group::give(call())
}

unsafe extern "C" fn version<const CODE: i32>(version: *mut c_int) -> Answer {
    // SAFETY: the caller promises that the argument points to one integer.
    unsafe { *version = CODE };
    SUCCESS
}

const TABLE: Api = Api {
    native: |queue| Ok(native(queue)),
    idle: |queue| queue.machine().idle(queue.stream()),
    get_version: version::<23_003>,
    get_unique_id: making::get_unique_id,
    init: making::init,
    async_error,
    user_rank,
    count,
    finalize: ending::finalize,
    destroy: ending::destroy,
    abort: ending::abort,
    group_start: group::group_start,
    group_end: group::group_end,
    all_reduce,
    broadcast,
    reduce,
    all_gather,
    reduce_scatter,
    send,
    recv,
    split: making::split,
    simulate: Some(group::simulate),
    shrink: Some(making::shrink),
    mem_alloc: Some(buffers::mem_alloc),
    mem_free: Some(buffers::mem_free),
    register: Some(buffers::register),
    deregister: Some(buffers::deregister),
    window_register: Some(buffers::window_register),
    window_deregister: Some(buffers::deregister),
};

/// The functions of NCCL 2.30.3.
static CURRENT: Api = TABLE;
/// The functions of NCCL 2.21.5, which can neither estimate nor shrink, and has no windows.
static NO_ESTIMATES: Api = Api {
    get_version: version::<22_105>,
    simulate: None,
    shrink: None,
    window_register: None,
    window_deregister: None,
    ..TABLE
};
/// The current functions with the version 2.17.1, which Allfold refuses before it calls any other function.
static TOO_OLD: Api = Api { get_version: version::<21_701>, ..TABLE };
/// The functions of a future NCCL 3.0.0.
static NEXT_MAJOR: Api = Api { get_version: version::<30_000>, ..TABLE };

macro_rules! nothing {
    ($($name:ident($($argument:ty),*)),*) => {
        $(unsafe extern "C" fn $name($(_: $argument),*) -> Answer {
            SUCCESS
        })*
    };
}

nothing! {
    no_reduction(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, CudaStream),
    no_reduce(*const c_void, *mut c_void, usize, c_int, c_int, c_int, RawComm, CudaStream),
    no_gather(*const c_void, *mut c_void, usize, c_int, RawComm, CudaStream),
    no_send(*const c_void, usize, c_int, c_int, RawComm, CudaStream),
    no_recv(*mut c_void, usize, c_int, c_int, RawComm, CudaStream)
}

/// The functions of NCCL 2.30.3, with collectives that return immediately and do nothing.
static INSTANT: Api = Api {
    all_reduce: no_reduction,
    broadcast: no_reduction,
    reduce: no_reduce,
    all_gather: no_gather,
    reduce_scatter: no_reduction,
    send: no_send,
    recv: no_recv,
    ..TABLE
};

/// The function table of the version that a test requests.
pub(in super::super) fn table(options: &StandIn) -> &'static Api {
    match options.version {
        _ if options.instant => &INSTANT,
        (2, 17) => &TOO_OLD,
        (2, 21) => &NO_ESTIMATES,
        (3, _) => &NEXT_MAJOR,
        _ => &CURRENT,
    }
}
