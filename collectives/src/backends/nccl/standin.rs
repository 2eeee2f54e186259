//! What stands in for NCCL's library in tests: its functions over threads of this process, whose devices' memory is the host's.
//!
//! ```text
//! NcclComm --- Api { init, all_reduce, send, .. }  = these functions       the shim of allfold_kernels::cuda has the memory
//! ```
//!
//! As the real ones do, calls without blocking answer "in progress" until they are done, groups begin together at their end,
//! an abort is told to the others, and a split meets all ranks. Two faults are drawn into the unique id: a library whose
//! collectives never end, and one that reports a lost peer. What it cannot show is anything of the real library's.

use super::api::{Answer, Api, Config, IN_PROGRESS, RawComm, RawId, SUCCESS, SimInfo, Stream};
use crate::{DType, ReduceOp};
use allfold_kernels::{Element, divide, for_dtype, reduce};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const INVALID_ARGUMENT: Answer = 4;
const REMOTE_ERROR: Answer = 6;

/// The byte of a unique id that says what goes wrong.
pub(super) const FAULT: usize = 8;
/// Collectives are taken and never end.
#[cfg(test)]
pub(super) const HANGS: u8 = 1;
/// Collectives are taken, and then a peer is reported as lost.
pub(super) const LOSES: u8 = 2;

/// What the ranks of one communicator share.
struct Group {
    size: usize,
    fault: u8,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    joined: usize,
    /// Somebody has aborted.
    gone: bool,
    /// Messages by (sender, receiver).
    mail: BTreeMap<(usize, usize), VecDeque<Vec<u8>>>,
    /// Collectives by their number.
    meetings: BTreeMap<u64, Meeting>,
    /// Communicators made of this one.
    children: BTreeMap<String, Arc<Group>>,
}

/// What each rank has put in, and how many have taken what came out.
type Meeting = (Vec<Option<Vec<u8>>>, usize);

/// What comes out of a meeting, from what all ranks have put in.
type Finish = Box<dyn Fn(&[Vec<u8>]) -> Vec<u8>>;

enum Task {
    Send { to: usize, bytes: Vec<u8> },
    Receive { from: usize, into: u64, bytes: usize },
    Meet { mine: Vec<u8>, into: u64, finish: Finish },
    Split { color: i32, key: i32, out: *mut RawComm },
}

/// What a rank waits for; a meeting has its number.
enum Pending {
    Receive { from: usize, into: u64, bytes: usize },
    Meet { at: u64, into: u64, finish: Finish },
    Split { at: u64, color: i32, out: *mut RawComm },
}

/// One rank's end: what a raw communicator points to. Used by the thread that made it.
struct Handle {
    group: Arc<Group>,
    rank: usize,
    calls: u64,
    pending: VecDeque<Pending>,
}

thread_local! {
    /// Calls of the group that is open on this thread.
    static OPEN: RefCell<Option<Vec<(RawComm, Task)>>> = const { RefCell::new(None) };
    /// Whether something was taken on this thread that will never end.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Group {
    fn new(size: usize, fault: u8) -> Arc<Group> {
        Arc::new(Group { size, fault, state: Mutex::default() })
    }

    fn join(self: &Arc<Group>, rank: usize) -> RawComm {
        lock(&self.state).joined += 1;
        let handle = Handle { group: self.clone(), rank, calls: 0, pending: VecDeque::new() };
        Box::into_raw(Box::new(handle)).cast()
    }
}

impl Handle {
    fn take(&mut self, task: Task) -> Answer {
        if self.group.fault != 0 {
            BUSY.set(true);
            return SUCCESS;
        }
        let mut state = lock(&self.group.state);
        let mut meet = |mine: Vec<u8>| {
            self.calls += 1;
            let empty = || ((0..self.group.size).map(|_| None).collect(), 0);
            state.meetings.entry(self.calls).or_insert_with(empty).0[self.rank] = Some(mine);
            self.calls
        };
        match task {
            Task::Meet { mine, into, finish } => {
                let at = meet(mine);
                self.pending.push_back(Pending::Meet { at, into, finish });
            }
            Task::Split { color, key, out } => {
                let at = meet([color.to_le_bytes(), key.to_le_bytes()].concat());
                self.pending.push_back(Pending::Split { at, color, out });
            }
            Task::Send { to, bytes } => state.mail.entry((self.rank, to)).or_default().push_back(bytes),
            Task::Receive { from, into, bytes } => {
                self.pending.push_back(Pending::Receive { from, into, bytes });
            }
        }
        drop(state);
        self.go_on()
    }

    /// Ends what can be ended.
    fn go_on(&mut self) -> Answer {
        let group = self.group.clone();
        let mut state = lock(&group.state);
        let blocked = if state.gone { REMOTE_ERROR } else { IN_PROGRESS };
        if state.joined < group.size {
            return blocked;
        }
        while let Some(pending) = self.pending.front() {
            match pending {
                Pending::Receive { from, into, bytes } => {
                    let Some(came) = state.mail.entry((*from, self.rank)).or_default().pop_front() else {
                        return blocked;
                    };
                    if came.len() != *bytes {
                        return INVALID_ARGUMENT;
                    }
                    put(*into, &came);
                }
                Pending::Meet { at, .. } | Pending::Split { at, .. } => {
                    let Some((inputs, taken)) = state.meetings.get_mut(at) else { return INVALID_ARGUMENT };
                    let Some(all) = inputs.iter().cloned().collect::<Option<Vec<_>>>() else {
                        return blocked;
                    };
                    *taken += 1;
                    let last = *taken == group.size;
                    if last {
                        state.meetings.remove(at);
                    }
                    match pending {
                        Pending::Meet { into, finish, .. } => put(*into, &finish(&all)),
                        Pending::Split { color, out, at } => {
                            let child = child(&mut state, &all, self.rank, *color, *at);
                            // SAFETY: the caller keeps the place until its parent is not in progress any more.
                            unsafe { **out = child };
                        }
                        Pending::Receive { .. } => {}
                    }
                }
            }
            self.pending.pop_front();
        }
        SUCCESS
    }
}

/// This rank's end of the communicator of its colour; null without one.
fn child(state: &mut State, all: &[Vec<u8>], rank: usize, color: i32, at: u64) -> RawComm {
    let word = |bytes: &[u8]| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let same = all.iter().enumerate().filter(|(_, said)| word(said) == color);
    let mut members: Vec<(i32, usize)> = same.map(|(rank, said)| (word(&said[4..]), rank)).collect();
    members.sort_unstable();
    match members.iter().position(|(_, member)| *member == rank) {
        Some(place) if color >= 0 => {
            let made = || Group::new(members.len(), 0);
            state.children.entry(format!("split {at} {color}")).or_insert_with(made).join(place)
        }
        _ => std::ptr::null_mut(),
    }
}

fn put(into: u64, bytes: &[u8]) {
    // SAFETY: whoever gave the address promised so many bytes of the shim's memory, which is this process's.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into as *mut u8, bytes.len()) };
}

fn get(from: *const c_void, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    // SAFETY: as in `put`.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), copy.as_mut_ptr(), bytes) };
    copy
}

/// Notes a call where a group is open, else begins it.
fn give(comm: RawComm, task: Task) -> Answer {
    OPEN.with_borrow_mut(|open| match open {
        Some(tasks) => {
            tasks.push((comm, task));
            SUCCESS
        }
        None => handle(comm).map_or(INVALID_ARGUMENT, |handle| handle.take(task)),
    })
}

fn handle<'a>(comm: RawComm) -> Option<&'a mut Handle> {
    // SAFETY: null, or of `Group::join` and not ended yet; the calling thread is the only one that uses it.
    unsafe { comm.cast::<Handle>().as_mut() }
}

fn meet(comm: RawComm, mine: Vec<u8>, into: *mut c_void, finish: Finish) -> Answer {
    give(comm, Task::Meet { mine, into: into as u64, finish })
}

/// The reduction of all inputs, in order of ranks.
fn reduced(dtype: c_int, op: c_int) -> Option<(usize, Finish)> {
    fn of<T: Element>(op: ReduceOp) -> (usize, Finish) {
        let values = |bytes: &[u8]| -> Vec<T> {
            bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
        };
        let finish = move |all: &[Vec<u8>]| {
            let mut sum = values(&all[0]);
            all[1..].iter().for_each(|other| reduce(op, &mut sum, &values(other)));
            if op == ReduceOp::Avg {
                divide(&mut sum, all.len() as u32);
            }
            bytemuck::cast_slice(&sum).to_vec()
        };
        (size_of::<T>(), Box::new(finish))
    }
    let op = ReduceOp::ALL.into_iter().find(|known| super::native::operator(*known) == op)?;
    let dtype = DType::ALL.into_iter().find(|known| super::native::number(*known) == Some(dtype))?;
    Some(for_dtype!(dtype, of(op)))
}

/// Communicators by the number in their unique id.
static GROUPS: Mutex<BTreeMap<u64, Arc<Group>>> = Mutex::new(BTreeMap::new());

unsafe extern "C" fn get_version(version: *mut c_int) -> Answer {
    // SAFETY: a place for one integer, by the caller's promise, here and below.
    unsafe { *version = 2_30_00 };
    SUCCESS
}

unsafe extern "C" fn get_unique_id(id: *mut RawId) -> Answer {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    // SAFETY: as in `get_version`.
    unsafe { *id = RawId(bytes) };
    SUCCESS
}

unsafe extern "C" fn init(
    out: *mut RawComm,
    size: c_int,
    id: RawId,
    rank: c_int,
    _config: *mut Config,
) -> Answer {
    let mut number = [0; 8];
    number.copy_from_slice(&id.0[..8]);
    let mut groups = lock(&GROUPS);
    let made = || Group::new(size as usize, id.0[FAULT]);
    let group = groups.entry(u64::from_le_bytes(number)).or_insert_with(made).clone();
    // SAFETY: as in `get_version`.
    unsafe { *out = group.join(rank as usize) };
    if lock(&group.state).joined == group.size {
        groups.remove(&u64::from_le_bytes(number));
    }
    IN_PROGRESS
}

unsafe extern "C" fn async_error(comm: RawComm, state: *mut Answer) -> Answer {
    let Some(handle) = handle(comm) else { return INVALID_ARGUMENT };
    let answer = match handle.group.fault {
        LOSES if BUSY.get() => REMOTE_ERROR,
        _ => handle.go_on(),
    };
    // SAFETY: as in `get_version`.
    unsafe { *state = answer };
    SUCCESS
}

unsafe extern "C" fn user_rank(comm: RawComm, rank: *mut c_int) -> Answer {
    let Some(handle) = handle(comm) else { return INVALID_ARGUMENT };
    // SAFETY: as in `get_version`.
    unsafe { *rank = handle.rank as c_int };
    SUCCESS
}

unsafe extern "C" fn count(comm: RawComm, count: *mut c_int) -> Answer {
    let Some(handle) = handle(comm) else { return INVALID_ARGUMENT };
    // SAFETY: as in `get_version`.
    unsafe { *count = handle.group.size as c_int };
    SUCCESS
}

unsafe extern "C" fn finalize(comm: RawComm) -> Answer {
    handle(comm).map_or(INVALID_ARGUMENT, Handle::go_on)
}

unsafe extern "C" fn destroy(comm: RawComm) -> Answer {
    BUSY.set(false);
    // SAFETY: of `Group::join`, and ended once.
    drop(unsafe { Box::from_raw(comm.cast::<Handle>()) });
    SUCCESS
}

unsafe extern "C" fn abort(comm: RawComm) -> Answer {
    let Some(handle) = handle(comm) else { return INVALID_ARGUMENT };
    lock(&handle.group.state).gone = true;
    // SAFETY: as in `destroy`.
    unsafe { destroy(comm) }
}

unsafe extern "C" fn group_start() -> Answer {
    OPEN.set(Some(Vec::new()));
    SUCCESS
}

unsafe extern "C" fn group_end() -> Answer {
    let mut answer = SUCCESS;
    for (comm, task) in OPEN.take().unwrap_or_default() {
        // The last one has tried all that were before it.
        answer = handle(comm).map_or(INVALID_ARGUMENT, |handle| handle.take(task));
    }
    answer
}

/// A microsecond and a half a call, and none is made.
unsafe extern "C" fn simulate(info: *mut SimInfo) -> Answer {
    let calls = OPEN.take().unwrap_or_default().len();
    // SAFETY: as in `get_version`.
    unsafe { (*info).estimated_us = 1.5 * calls as f32 };
    SUCCESS
}

unsafe extern "C" fn all_reduce(
    from: *const c_void,
    into: *mut c_void,
    n: usize,
    dtype: c_int,
    op: c_int,
    comm: RawComm,
    _stream: Stream,
) -> Answer {
    let Some((size, finish)) = reduced(dtype, op) else { return INVALID_ARGUMENT };
    meet(comm, get(from, n * size), into, finish)
}

unsafe extern "C" fn broadcast(
    from: *const c_void,
    into: *mut c_void,
    bytes: usize,
    _dtype: c_int,
    root: c_int,
    comm: RawComm,
    _stream: Stream,
) -> Answer {
    meet(comm, get(from, bytes), into, Box::new(move |all| all[root as usize].clone()))
}

unsafe extern "C" fn reduce_to(
    from: *const c_void,
    into: *mut c_void,
    n: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    comm: RawComm,
    _stream: Stream,
) -> Answer {
    let (Some((size, finish)), Some(handle)) = (reduced(dtype, op), handle(comm)) else {
        return INVALID_ARGUMENT;
    };
    let is_root = handle.rank == root as usize;
    meet(comm, get(from, n * size), into, Box::new(move |all| if is_root { finish(all) } else { Vec::new() }))
}

unsafe extern "C" fn all_gather(
    from: *const c_void,
    into: *mut c_void,
    bytes: usize,
    _dtype: c_int,
    comm: RawComm,
    _stream: Stream,
) -> Answer {
    meet(comm, get(from, bytes), into, Box::new(|all| all.concat()))
}

unsafe extern "C" fn reduce_scatter(
    from: *const c_void,
    into: *mut c_void,
    n: usize,
    dtype: c_int,
    op: c_int,
    comm: RawComm,
    _stream: Stream,
) -> Answer {
    let (Some((size, finish)), Some(handle)) = (reduced(dtype, op), handle(comm)) else {
        return INVALID_ARGUMENT;
    };
    let (block, rank) = (n * size, handle.rank);
    let own = move |all: &[Vec<u8>]| finish(all)[rank * block..][..block].to_vec();
    meet(comm, get(from, block * handle.group.size), into, Box::new(own))
}

unsafe extern "C" fn send(
    from: *const c_void,
    bytes: usize,
    _dtype: c_int,
    to: c_int,
    comm: RawComm,
    _stream: Stream,
) -> Answer {
    give(comm, Task::Send { to: to as usize, bytes: get(from, bytes) })
}

unsafe extern "C" fn recv(
    into: *mut c_void,
    bytes: usize,
    _dtype: c_int,
    from: c_int,
    comm: RawComm,
    _stream: Stream,
) -> Answer {
    give(comm, Task::Receive { from: from as usize, into: into as u64, bytes })
}

unsafe extern "C" fn split(
    comm: RawComm,
    color: c_int,
    key: c_int,
    out: *mut RawComm,
    _config: *mut Config,
) -> Answer {
    give(comm, Task::Split { color, key, out })
}

unsafe extern "C" fn shrink(
    comm: RawComm,
    without: *const c_int,
    n: c_int,
    out: *mut RawComm,
    _config: *mut Config,
    _flags: c_int,
) -> Answer {
    let Some(handle) = handle(comm) else { return INVALID_ARGUMENT };
    // SAFETY: as many as the caller says.
    let without: Vec<usize> = (0..n as usize).map(|at| unsafe { *without.add(at) } as usize).collect();
    let left: Vec<usize> = (0..handle.group.size).filter(|rank| !without.contains(rank)).collect();
    let Some(place) = left.iter().position(|rank| *rank == handle.rank) else { return INVALID_ARGUMENT };
    handle.pending.clear();
    let mut state = lock(&handle.group.state);
    let made = || Group::new(left.len(), 0);
    let child = state.children.entry(format!("shrink {without:?}")).or_insert_with(made).join(place);
    // SAFETY: as in `get_version`.
    unsafe { *out = child };
    SUCCESS
}

/// The table.
pub(super) static API: Api = Api {
    native: |_| Ok(0),
    idle: |_| Ok(!BUSY.get()),
    get_version,
    get_unique_id,
    init,
    async_error,
    user_rank,
    count,
    finalize,
    destroy,
    abort,
    group_start,
    group_end,
    all_reduce,
    broadcast,
    reduce: reduce_to,
    all_gather,
    reduce_scatter,
    send,
    recv,
    split,
    simulate: Some(simulate),
    shrink: Some(shrink),
};
