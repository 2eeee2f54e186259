//! The NCCL stand-in's init, split and shrink.

use super::super::api::{Answer, Config, RawComm, RawId, SUCCESS};
use super::super::host::host;
use super::family::{Family, count};
use super::options::{options, spans_processes};
use super::traffic::Event;
use super::wire::{self, Wire};
use super::world::{Comm, Group, current, on};
use super::{INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, SYSTEM_ERROR};
use allfold_base::lock;
use allfold_cuda::CudaMachine;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The blocks of NCCL's kernels that run on a GPU at once: one for each multiprocessor of an H200.
const AT_ONCE: u32 = 132;
/// The blocks of a rank's kernels if the settings do not limit them.
const UNLIMITED: u32 = 64;

/// Communicators that ranks are joining, by the number in their unique id.
static JOINING: Mutex<BTreeMap<u64, Arc<Group>>> = Mutex::new(BTreeMap::new());

/// The id holds a number, and for ranks that are processes the port at which this process connects them.
pub(super) unsafe extern "C" fn get_unique_id(id: *mut RawId) -> Answer {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    if spans_processes() {
        let Ok(port) = wire::serve() else { return INTERNAL_ERROR };
        bytes[8..10].copy_from_slice(&port.to_le_bytes());
    }
    // SAFETY: the caller promises that the argument points to one id.
    unsafe { *id = RawId(bytes) };
    SUCCESS
}

pub(super) unsafe extern "C" fn init(
    out: *mut RawComm,
    size: c_int,
    id: RawId,
    rank: c_int,
    config: *mut Config,
) -> Answer {
    // A calling thread without a current device is an error.
    let Some(place) = current() else { return INVALID_USAGE };
    let mut number = [0; 8];
    number.copy_from_slice(&id.0[..8]);
    let number = u64::from_le_bytes(number);
    let of = options(&place.machine);
    let group = match u16::from_le_bytes([id.0[8], id.0[9]]) {
        0 => {
            let made = || Group::new(size as usize, of, None);
            lock(&JOINING).entry(number).or_insert_with(made).clone()
        }
        port => match Wire::connect(port, (rank as usize, size as usize)) {
            Ok(wire) => Group::new(size as usize, of, Some(wire)),
            Err(_) => return SYSTEM_ERROR,
        },
    };
    // SAFETY: the caller promises that the settings live during the call.
    let (blocking, blocks, share) =
        unsafe { ((*config).blocking != 0, (*config).max_ctas, (*config).split_share) };
    let blocks = u32::try_from(blocks).unwrap_or(UNLIMITED);
    count(&place.machine, |made| made.joined += 1);
    let comm = Comm::register(&group, rank as usize, blocking, place, (Arc::default(), shares(share)));
    // SAFETY: the caller promises a place for a handle. NCCL stores the handle before it waits for the other ranks.
    unsafe { publish(out, comm.raw()) };
    let joining = comm.clone();
    comm.work(move || {
        let answer = join(&joining, blocks);
        lock(&JOINING).remove(&number);
        answer
    })
}

/// Whether communicators that are split off share resources, by the setting of their parent and the variable that overrides it.
fn shares(setting: c_int) -> bool {
    let variable = std::env::var("NCCL_COMM_SPLIT_SHARE_RESOURCES").ok();
    variable.and_then(|text| text.parse().ok()).unwrap_or(setting) == 1
}

/// Waits until all ranks of a communicator have joined. Where blocks of ranks on one GPU cannot run at the same time, NCCL's kernels wait
/// for each other for ever; here the ranks are refused.
fn join(comm: &Comm, blocks: u32) -> Answer {
    let (machine, device) = comm.device();
    let (identity, size) = (identity(&**machine, device), comm.group.size);
    comm.group.tell(comm.rank, Event::Joined(identity, blocks));
    let all = comm.await_all(|state| (state.joined.len() == size).then(|| state.joined.clone()));
    match all {
        Err(answer) => answer,
        Ok(all) => {
            let beside = all.values().filter(|(gpu, _)| *gpu == identity);
            let (ranks, blocks) = beside.fold((0, 0), |(ranks, sum), (_, blocks)| (ranks + 1, sum + blocks));
            let refused = ranks > 1 && (!comm.group.options.shares || blocks > AT_ONCE);
            if refused { INVALID_USAGE } else { SUCCESS }
        }
    }
}

/// A GPU among those of all hosts, as NCCL tells hosts apart.
fn identity(machine: &dyn CudaMachine, device: usize) -> [u8; 16] {
    let (gpu, host) = (machine.identity(device), host());
    std::array::from_fn(|at| gpu[at] ^ host[at])
}

/// Stores a handle at the caller's address.
///
/// # Safety
/// `out` must point to a place for a handle.
unsafe fn publish(out: *mut RawComm, raw: RawComm) {
    // SAFETY: the caller promises a place for a handle; another thread may read the handle at the same time.
    unsafe { AtomicPtr::from_ptr(out) }.store(raw, Ordering::Release);
}

/// Makes a communicator from another one. With a non-blocking parent the call returns at once, and the handle is stored when the
/// communicator is made.
fn child(
    parent: &Arc<Comm>,
    out: *mut RawComm,
    config: *mut Config,
    family: Arc<Family>,
    place: impl FnOnce(&Comm) -> Result<Option<(Arc<Group>, usize)>, Answer> + Send + 'static,
) -> Answer {
    // SAFETY: `config` is null or points to settings that live during the call.
    let (blocking, blocks) = unsafe { config.as_ref() }
        .map_or((parent.blocking, -1), |config| (config.blocking != 0, config.max_ctas));
    // SAFETY: the caller promises a place for a handle.
    unsafe { publish(out, std::ptr::null_mut()) };
    let (of, at) = (parent.clone(), out as usize);
    let answer = parent.work(move || match place(&of) {
        Err(answer) => answer,
        Ok(None) => SUCCESS,
        Ok(Some((group, rank))) => {
            let comm = Comm::register(&group, rank, blocking, of.place(), (family, of.shares));
            // The child does not have its parent's limit (`init.cc`).
            let answer = join(&comm, u32::try_from(blocks).unwrap_or(UNLIMITED));
            comm.state.store(answer, Ordering::Release);
            if answer == SUCCESS {
                // SAFETY: the caller keeps the place for the handle until the parent is no longer in progress.
                unsafe { publish(at as *mut RawComm, comm.raw()) };
            }
            answer
        }
    });
    // NCCL returns success although the call of a non-blocking communicator is still in progress.
    if parent.blocking { answer } else { SUCCESS }
}

pub(super) unsafe extern "C" fn split(
    comm: RawComm,
    color: c_int,
    key: c_int,
    out: *mut RawComm,
    config: *mut Config,
) -> Answer {
    on(comm, |parent| {
        let nth = parent.splits.fetch_add(1, Ordering::Relaxed);
        let family = if parent.shares { parent.family.clone() } else { Arc::default() };
        if color >= 0 {
            count(parent.device().0, |made| match parent.shares {
                true => made.shared += 1,
                false => made.separate += 1,
            });
        }
        child(&parent, out, config, family, move |parent| {
            parent.group.tell(parent.rank, Event::Splits(nth, color, key));
            let size = parent.group.size;
            parent.await_all(|state| {
                let said = state.splits.get(&nth).filter(|said| said.len() == size)?;
                let same = said.iter().filter(|(_, (other, _))| *other == color);
                let mut members: Vec<(i32, usize)> = same.map(|(rank, (_, key))| (*key, *rank)).collect();
                members.sort_unstable();
                let place = members.iter().position(|(_, member)| *member == parent.rank)?;
                if color < 0 {
                    return Some(None);
                }
                let ranks: Vec<usize> = members.iter().map(|(_, rank)| *rank).collect();
                let name = format!("split {nth} into {color}");
                let made = || parent.group.child(&name, &ranks);
                Some(Some((state.children.entry(name.clone()).or_insert_with(made).clone(), place)))
            })
        })
    })
}

pub(super) unsafe extern "C" fn shrink(
    comm: RawComm,
    without: *mut c_int,
    n: c_int,
    out: *mut RawComm,
    config: *mut Config,
    flags: c_int,
) -> Answer {
    const ABORT: c_int = 1;
    let Some(parent) = super::world::find(comm) else { return INVALID_ARGUMENT };
    if flags & ABORT != 0 {
        // Running kernels are ended by the abort flag, which is then cleared.
        parent.family.abort(true);
        parent.until(|| parent.outstanding.load(Ordering::Acquire) == 0);
        parent.family.abort(false);
    }
    // SAFETY: the list has `n` ranks by the caller's contract, and the caller lets NCCL sort it.
    let without = unsafe { std::slice::from_raw_parts_mut(without, n as usize) };
    without.sort_unstable();
    if without.is_empty() || without.contains(&(parent.rank as c_int)) {
        return INVALID_ARGUMENT;
    }
    let gone: Vec<usize> = without.iter().map(|rank| *rank as usize).collect();
    on(comm, |parent| {
        child(&parent, out, config, Arc::default(), move |parent| {
            let left: Vec<usize> = (0..parent.group.size).filter(|rank| !gone.contains(rank)).collect();
            let place = left.iter().position(|rank| *rank == parent.rank).ok_or(INVALID_ARGUMENT)?;
            let name = format!("shrink {gone:?}");
            let made = || parent.group.child(&name, &left);
            let mut state = lock(&parent.group.state);
            Ok(Some((state.children.entry(name.clone()).or_insert_with(made).clone(), place)))
        })
    })
}
