//! The functions of `libnccl.so.2` that Allfold calls, looked up once.
//!
//! Types are those of NCCL's public `nccl.h`. Enumerations are passed as plain integers, because a newer NCCL may return a value
//! that is unknown here.

use crate::{Error, Result};
use allfold_cuda::Queue;
use allfold_cuda::libraries::CudaLibrary;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;

#[cfg(test)]
mod tests;

pub(super) type RawComm = *mut c_void;
pub(super) type CudaStream = *mut c_void;
/// The handle of a window (`ncclWindow_t`).
pub(super) type Window = *mut c_void;
pub(super) type Answer = c_int;

pub(super) const SUCCESS: Answer = 0;
pub(super) const IN_PROGRESS: Answer = 7;

/// The opaque id by which the ranks of a communicator find each other.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawId(pub [u8; 128]);

/// The first fields of a communicator's settings (`ncclConfig_t`), which every NCCL from 2.18 on reads by size and version.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    pub(super) blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    pub(super) max_ctas: c_int,
    net_name: *const c_char,
    pub(super) split_share: c_int,
}

impl Config {
    /// Settings for calls that block until their work is queued (`blocking`), or that return immediately and are polled, and the most
    /// thread blocks of a kernel, if there is a limit. A communicator that is split off later shares the resources of the first one, unless
    /// NCCL_COMM_SPLIT_SHARE_RESOURCES is 0. All other settings are left to NCCL.
    pub fn new(blocking: bool, blocks: Option<u32>) -> Config {
        let (undefined, size) = (c_int::MIN, size_of::<Config>());
        Config {
            size,
            magic: 0xcafe_beef,
            version: 21_800,
            blocking: c_int::from(blocking),
            cga_cluster_size: undefined,
            min_ctas: undefined,
            max_ctas: blocks.map_or(undefined, |blocks| blocks as c_int),
            net_name: std::ptr::null(),
            split_share: 1,
        }
    }
}

/// NCCL's result of simulating a group (`ncclSimInfo_t`).
#[repr(C)]
pub(super) struct SimInfo {
    size: usize,
    magic: u32,
    version: u32,
    pub estimated_us: f32,
}

impl SimInfo {
    pub fn new() -> SimInfo {
        SimInfo { size: size_of::<SimInfo>(), magic: 0x7468_5283, version: 22_200, estimated_us: -1.0 }
    }
}

macro_rules! table {
    ($($field:ident = $symbol:literal: fn($($argument:ty),*)),* ; $($late:ident = $name:literal: fn($($late_argument:ty),*)),*) => {
        /// The table of functions. Functions that only later versions have are optional.
        #[allow(clippy::type_complexity, reason = "functions as nccl.h declares them")]
        pub(super) struct Api {
            /// The library's handle of a queue's stream.
            pub native: fn(&Queue) -> allfold_cuda::Result<u64>,
            /// Whether all work issued on a queue is done.
            pub idle: fn(&Queue) -> allfold_cuda::Result<bool>,
            $(pub $field: unsafe extern "C" fn($($argument),*) -> Answer,)*
            $(pub $late: Option<unsafe extern "C" fn($($late_argument),*) -> Answer>,)*
        }

        /// The names of all functions that are called.
        #[cfg(test)]
        pub(super) const FUNCTIONS: &[&str] = &[$($symbol,)* $($name),*];

        fn look_up(library: &libloading::Library) -> Result<Api> {
            // SAFETY: each function has this type in nccl.h, in every version that has it.
            unsafe {
                Ok(Api {
                    native: |queue| queue.machine().native(queue.stream()),
                    idle: |queue| queue.machine().idle(queue.stream()),
                    $($field: *library.get($symbol.as_bytes()).map_err(|_| lacking($symbol))?,)*
                    $($late: library.get($name.as_bytes()).ok().map(|symbol| *symbol),)*
                })
            }
        }

        /// The name and type of each function; functions that an NCCL library may lack are in the second list.
        #[cfg(test)]
        fn signatures() -> [Vec<(&'static str, &'static str)>; 2] {
            use std::any::type_name;
            [
                vec![$(($symbol, type_name::<unsafe extern "C" fn($($argument),*) -> Answer>())),*],
                vec![$(($name, type_name::<unsafe extern "C" fn($($late_argument),*) -> Answer>())),*],
            ]
        }
    };
}

table! {
    get_version = "ncclGetVersion": fn(*mut c_int),
    get_unique_id = "ncclGetUniqueId": fn(*mut RawId),
    init = "ncclCommInitRankConfig": fn(*mut RawComm, c_int, RawId, c_int, *mut Config),
    async_error = "ncclCommGetAsyncError": fn(RawComm, *mut Answer),
    user_rank = "ncclCommUserRank": fn(RawComm, *mut c_int),
    count = "ncclCommCount": fn(RawComm, *mut c_int),
    finalize = "ncclCommFinalize": fn(RawComm),
    destroy = "ncclCommDestroy": fn(RawComm),
    abort = "ncclCommAbort": fn(RawComm),
    group_start = "ncclGroupStart": fn(),
    group_end = "ncclGroupEnd": fn(),
    all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, CudaStream),
    broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, CudaStream),
    reduce = "ncclReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, RawComm, CudaStream),
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, RawComm, CudaStream),
    reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, CudaStream),
    send = "ncclSend": fn(*const c_void, usize, c_int, c_int, RawComm, CudaStream),
    recv = "ncclRecv": fn(*mut c_void, usize, c_int, c_int, RawComm, CudaStream),
    split = "ncclCommSplit": fn(RawComm, c_int, c_int, *mut RawComm, *mut Config)
    ;
    simulate = "ncclGroupSimulateEnd": fn(*mut SimInfo),
    shrink = "ncclCommShrink": fn(RawComm, *mut c_int, c_int, *mut RawComm, *mut Config, c_int),
    mem_alloc = "ncclMemAlloc": fn(*mut *mut c_void, usize),
    mem_free = "ncclMemFree": fn(*mut c_void),
    register = "ncclCommRegister": fn(RawComm, *mut c_void, usize, *mut *mut c_void),
    deregister = "ncclCommDeregister": fn(RawComm, *mut c_void),
    window_register = "ncclCommWindowRegister": fn(RawComm, *mut c_void, usize, *mut Window, c_int),
    window_deregister = "ncclCommWindowDeregister": fn(RawComm, Window)
}

fn missing(looked_for: String) -> Error {
    Error::System(allfold_cuda::Error::Missing { library: CudaLibrary::Nccl, looked_for }.to_string())
}

fn lacking(symbol: &str) -> Error {
    missing(format!("the installed NCCL has no {symbol}; 2.18 or newer is needed"))
}

/// The function table, or the reason why there is none.
pub(super) fn api() -> Result<&'static Api> {
    static TABLE: OnceLock<Result<Api>> = OnceLock::new();
    TABLE.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Api> {
    open(CudaLibrary::Nccl.load())
}

/// The function table of the library that was loaded from `path`.
fn open(path: Option<&Path>) -> Result<Api> {
    let path = path.ok_or_else(|| missing("no libnccl.so.2".into()))?;
    // SAFETY: the library is already loaded and stays loaded; this call adds a reference to it.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| missing(error.to_string()))?;
    let table = look_up(&library)?;
    // The library must stay loaded longer than every communicator.
    std::mem::forget(library);
    Ok(table)
}

/// The version of NCCL, such as (2, 28, 3).
///
/// # Errors
/// NCCL is missing or its version is not supported; the error explains how to get NCCL.
pub fn version() -> Result<(i32, i32, i32)> {
    supported(api()?)
}

/// The version of a library, if Allfold can use it.
///
/// # Errors
/// The version is not supported.
pub(super) fn supported(api: &Api) -> Result<(i32, i32, i32)> {
    let mut code = 0;
    // SAFETY: the argument points to one integer.
    check("tell its version", unsafe { (api.get_version)(&mut code) })?;
    // Up to version 2.8 the code was 1000 x major; from then on it is 10,000 x major.
    let version = match code {
        ..10_000 => (code / 1000, code / 100 % 10, code % 100),
        _ => (code / 10_000, code / 100 % 100, code % 100),
    };
    let (major, minor, patch) = version;
    if major != 2 || minor < 18 {
        let what = if major > 2 { "another major version" } else { "too old" };
        return Err(missing(format!(
            "NCCL {major}.{minor}.{patch} is {what}: a version 2 from 2.18 on is needed"
        )));
    }
    Ok(version)
}

/// Turns an answer other than success into an error that contains what NCCL could not do.
pub(super) fn check(what: &str, answer: Answer) -> Result<()> {
    match answer {
        SUCCESS => Ok(()),
        other => Err(Error::System(format!("NCCL could not {what}: {}", name(other)))),
    }
}

pub(super) fn name(answer: Answer) -> String {
    let names = [
        "success",
        "a CUDA call failed (ncclUnhandledCudaError)",
        "a system call failed (ncclSystemError)",
        "ncclInternalError",
        "ncclInvalidArgument",
        "ncclInvalidUsage",
        "a peer failed or left (ncclRemoteError)",
        "still in progress (ncclInProgress)",
        "ncclTimeout",
    ];
    usize::try_from(answer)
        .ok()
        .and_then(|at| names.get(at))
        .map_or(format!("answer {answer}"), |n| n.to_string())
}
