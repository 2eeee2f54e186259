//! Groups in the NCCL stand-in: calls are recorded until the outermost group ends, then connect and are queued as one kernel.

use super::super::api::{Answer, IN_PROGRESS, SUCCESS, SimInfo};
use super::kernel::{self, Op};
use super::traffic::{Event, Link};
use super::world::Comm;
use super::{INVALID_USAGE, REMOTE_ERROR};
use allfold_base::lock;
use allfold_cuda::{CudaMachine, CudaStream};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A function that is called at the end of a group.
type Later = Box<dyn FnOnce()>;

#[derive(Default)]
struct Open {
    depth: u32,
    calls: Vec<(Arc<Comm>, u64, Op)>,
    /// The first error of a call; the group then does nothing.
    refused: Option<Answer>,
    later: Vec<Later>,
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::default();
}

pub(super) unsafe extern "C" fn group_start() -> Answer {
    OPEN.with_borrow_mut(|open| open.depth += 1);
    SUCCESS
}

/// Closes a group; `None` if none is open. Returns the recorded calls of the outermost group; none and depth 1 for an inner group.
fn close() -> Option<Open> {
    OPEN.with_borrow_mut(|open| {
        open.depth = open.depth.checked_sub(1)?;
        Some(if open.depth == 0 { std::mem::take(open) } else { Open { depth: 1, ..Open::default() } })
    })
}

pub(super) unsafe extern "C" fn group_end() -> Answer {
    let Some(open) = close() else { return INVALID_USAGE };
    if open.depth > 0 {
        return SUCCESS;
    }
    let answer = open.refused.unwrap_or_else(|| start(open.calls));
    open.later.into_iter().for_each(|later| later());
    answer
}

/// Ends a group as `ncclGroupSimulateEnd` does: a blocking communicator estimates and runs nothing, a non-blocking one runs its
/// calls and estimates nothing.
pub(super) unsafe extern "C" fn simulate(info: *mut SimInfo) -> Answer {
    let Some(open) = close() else { return INVALID_USAGE };
    if let Some(answer) = open.refused {
        return answer;
    }
    if open.calls.iter().any(|(comm, ..)| !comm.blocking) {
        return start(open.calls);
    }
    // SAFETY: the caller keeps the struct during the call.
    unsafe { (*info).estimated_us = 1.5 * open.calls.len() as f32 };
    SUCCESS
}

/// Calls `later` when the group that is open on this thread ends, or immediately if no group is open.
pub(super) fn at_its_end(later: Later) {
    let now = OPEN.with_borrow_mut(|open| match open.depth {
        0 => Some(later),
        _ => {
            open.later.push(later);
            None
        }
    });
    if let Some(now) = now {
        now();
    }
}

/// Takes a call: records it if a group is open, otherwise starts it.
pub(super) fn give(call: Result<(Arc<Comm>, u64, Op), Answer>) -> Answer {
    let grouped = OPEN.with_borrow(|open| open.depth > 0);
    match (call, grouped) {
        (Ok(call), false) => start(vec![call]),
        (Err(answer), false) => answer,
        (call, true) => OPEN.with_borrow_mut(|open| match call {
            Ok(call) => {
                open.calls.push(call);
                SUCCESS
            }
            Err(answer) => {
                open.refused.get_or_insert(answer);
                answer
            }
        }),
    }
}

/// Starts the calls of a group, for one communicator after another.
fn start(mut calls: Vec<(Arc<Comm>, u64, Op)>) -> Answer {
    let mut answer = SUCCESS;
    while let Some((comm, stream)) = calls.first().map(|(comm, stream, _)| (comm.clone(), *stream)) {
        let (own, others): (Vec<_>, Vec<_>) =
            calls.into_iter().partition(|(other, at, _)| other.number == comm.number && *at == stream);
        calls = others;
        let ops: Vec<Op> = own.into_iter().map(|(.., op)| op).collect();
        let of = comm.clone();
        match comm
            .work(move || connect(&of, stream, &ops).map_or_else(|a| a, |()| kernel::queue(&of, stream, ops)))
        {
            SUCCESS => {}
            IN_PROGRESS if answer == SUCCESS => answer = IN_PROGRESS,
            refused => return refused,
        }
    }
    answer
}

/// Waits until the other ends of all new connections have called, too, and if the call registers its buffers, until all ranks have.
fn connect(comm: &Arc<Comm>, stream: u64, ops: &[Op]) -> Result<(), Answer> {
    if !comm.group.options.connects {
        return Ok(());
    }
    let mut new: Vec<Link> = ops.iter().map(|op| op.link(comm.rank)).collect();
    new.retain(|link| !lock(&comm.connected).contains(link));
    let captures = |(machine, at): (Arc<dyn CudaMachine>, CudaStream)| machine.captures(at).unwrap_or(false);
    if comm.group.options.registers && super::world::stream(stream).is_some_and(captures) {
        new.push(Link::Registered { nth: comm.registered.fetch_add(1, Ordering::Relaxed) });
    }
    let ends = |link: &Link| match *link {
        Link::Pair { from, to } => vec![from, to],
        Link::All { .. } | Link::Registered { .. } => (0..comm.group.size).collect(),
    };
    new.iter().for_each(|link| comm.group.tell(comm.rank, Event::Calls(*link)));
    let told = comm.group.options.lost == super::PeerLoss::Told;
    comm.await_all(|state| {
        let missing = |link: &Link| {
            let there = state.links.get(link);
            ends(link).into_iter().filter(|end| there.is_none_or(|there| !there.contains(end))).collect()
        };
        let missing: Vec<usize> = new.iter().flat_map(|link| -> Vec<usize> { missing(link) }).collect();
        match missing.iter().any(|rank| state.gone.contains(rank)) && told {
            true => Some(Err(REMOTE_ERROR)),
            false => missing.is_empty().then_some(Ok(())),
        }
    })??;
    lock(&comm.connected).extend(new);
    Ok(())
}
