//! The NCCL stand-in's kernel: a group of collectives and messages on a stream that waits for the peers' parts and moves data.

use super::super::api::{Answer, SUCCESS};
use super::super::numbers::{number, operator};
use super::options::{PeerLoss, ProcessFault};
use super::traffic::{Entry, Event, Link, Said};
use super::world::{Comm, State, stream};
use super::{INVALID_ARGUMENT, REMOTE_ERROR, UNHANDLED_CUDA};
use crate::{DType, ReduceOp};
use allfold_base::lock;
use allfold_cuda::MemoryAccess;
use allfold_kernels::{Element, divide, for_dtype, reduce};
use allfold_standin::{Foreign, Poll, Progress, Shim, standin_foreign};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The size in bytes above which a collective uses another algorithm, with connections of its own.
const LARGE: usize = 64 << 10;

#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    Meet { said: Said, from: u64, into: u64 },
    Send { from: u64, bytes: usize, to: usize },
    Receive { into: u64, bytes: usize, of: usize },
}

/// An operation of a kernel that is not done.
enum Pending {
    Meet {
        at: u64,
        into: u64,
    },
    /// The message of this number to a rank, counted from 1.
    Sent {
        to: usize,
        nth: u64,
    },
    Receive {
        into: u64,
        bytes: usize,
        of: usize,
    },
}

impl Op {
    pub fn link(&self, rank: usize) -> Link {
        match *self {
            Op::Meet { said, .. } => Link::All { large: said.bytes > LARGE },
            Op::Send { to, .. } => Link::Pair { from: rank, to },
            Op::Receive { of, .. } => Link::Pair { from: of, to: rank },
        }
    }

    fn accesses(&self, comm: &Comm) -> Vec<MemoryAccess> {
        let access = |address, bytes: usize, write| MemoryAccess { address, bytes: bytes as u64, write };
        match *self {
            Op::Meet { said, from, into } => {
                let wide = said.result(comm.rank, comm.group.size);
                vec![access(from, said.bytes, false), access(into, wide, true)]
            }
            Op::Send { from, bytes, .. } => vec![access(from, bytes, false)],
            Op::Receive { into, bytes, .. } => vec![access(into, bytes, true)],
        }
    }
}

impl Said {
    /// The size in bytes of a rank's result.
    fn result(&self, rank: usize, size: usize) -> usize {
        match self.kind {
            "all_gather" => self.bytes * size,
            "reduce_scatter" => self.bytes / size,
            "reduce" if rank != self.root => 0,
            _ => self.bytes,
        }
    }

    /// A rank's result, computed from all inputs.
    fn of(&self, rank: usize, all: &[Arc<Vec<u8>>]) -> Vec<u8> {
        match self.kind {
            "broadcast" => all[self.root].to_vec(),
            "all_gather" => all.iter().flat_map(|input| input.iter().copied()).collect(),
            "reduce" if rank != self.root => Vec::new(),
            "reduce_scatter" => {
                let block = self.bytes / all.len();
                self.reduced(all)[rank * block..][..block].to_vec()
            }
            _ => self.reduced(all),
        }
    }

    /// The reduction of all inputs, in the order of ranks.
    fn reduced(&self, all: &[Arc<Vec<u8>>]) -> Vec<u8> {
        fn of<T: Element>(op: ReduceOp, all: &[Arc<Vec<u8>>]) -> Vec<u8> {
            let values = |bytes: &[u8]| -> Vec<T> {
                bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
            };
            let mut sum = values(&all[0]);
            all[1..].iter().for_each(|other| reduce(op, &mut sum, &values(other)));
            if op == ReduceOp::Avg {
                divide(&mut sum, all.len() as u32);
            }
            bytemuck::cast_slice(&sum).to_vec()
        }
        let op = ReduceOp::ALL.into_iter().find(|known| operator(*known) == self.op);
        let dtype = DType::ALL.into_iter().find(|known| number(*known) == Some(self.dtype));
        match (op, dtype) {
            (Some(op), Some(dtype)) => for_dtype!(dtype, of(op, all)),
            // Types and operators were checked when the call was made.
            _ => Vec::new(),
        }
    }
}

/// Queues a group of operations on a stream.
pub(super) fn queue(comm: &Arc<Comm>, handle: u64, ops: Vec<Op>) -> Answer {
    let Some((machine, at)) = stream(handle) else { return INVALID_ARGUMENT };
    let accesses = ops.iter().flat_map(|op| op.accesses(comm)).filter(|access| access.bytes > 0).collect();
    let (of, ops) = (comm.clone(), Arc::<[Op]>::from(ops));
    // The kernels of a graph are ordered by the graph.
    let turn = if machine.captures(at).unwrap_or(false) { None } else { Some(comm.family.issue()) };
    let start = move |replayed: bool| {
        if replayed {
            of.outstanding.fetch_add(1, Ordering::AcqRel);
        }
        let (comm, ops, mut pending) = (of.clone(), ops.clone(), None);
        let poll = move || {
            if !comm.is_aborted() && turn.is_some_and(|turn| !comm.family.is_next(turn)) {
                return Progress::Busy;
            }
            let pending = pending.get_or_insert_with(|| enter(&comm, &ops, replayed));
            let progress = go_on(&comm, pending);
            if progress != Progress::Busy {
                turn.into_iter().for_each(|turn| comm.family.end(turn));
                comm.outstanding.fetch_sub(1, Ordering::AcqRel);
            }
            progress
        };
        Box::new(poll) as Poll
    };
    let held = Arc::strong_count(&comm.graphs);
    let (start, graphs) = (Arc::new(start), comm.graphs.clone());
    comm.outstanding.fetch_add(1, Ordering::AcqRel);
    let foreign = Foreign { name: "a kernel of NCCL's", accesses, start, graphs };
    let given = match Shim::of(machine.as_ref()) {
        Some(shim) => shim.give_foreign(at, foreign),
        None => machine.native(at).and_then(|handle| standin_foreign(handle, foreign)),
    };
    if given.is_err() || Arc::strong_count(&comm.graphs) > held {
        // No kernel runs: the stream refused it, or recorded it in a capture, which retains the communicator.
        comm.outstanding.fetch_sub(1, Ordering::AcqRel);
        turn.into_iter().for_each(|turn| comm.family.end(turn));
    }
    if given.is_ok() { SUCCESS } else { UNHANDLED_CUDA }
}

/// Contributes this rank's inputs and messages to the operations of a kernel.
fn enter(comm: &Comm, ops: &[Op], replayed: bool) -> Vec<Pending> {
    if comm.is_aborted() {
        return Vec::new();
    }
    let pending = ops.iter().map(|op| match *op {
        Op::Meet { said, from, into } => {
            comm.group.options.fault.iter().for_each(|fault| befall(*fault));
            let at = {
                let mut state = lock(&comm.group.state);
                let begun = state.begun.entry(comm.rank).or_default();
                *begun += 1;
                *begun
            };
            let entry = (said, replayed, Arc::new(get(from, said.bytes)));
            comm.group.tell(comm.rank, Event::Begins(at, entry));
            Pending::Meet { at, into }
        }
        Op::Send { from, bytes, to } => {
            let nth = {
                let mut state = lock(&comm.group.state);
                let sent = state.sent.entry((comm.rank, to)).or_default();
                *sent += 1;
                *sent
            };
            comm.group.tell(comm.rank, Event::Sends(to, get(from, bytes)));
            Pending::Sent { to, nth }
        }
        Op::Receive { into, bytes, of } => Pending::Receive { into, bytes, of },
    });
    pending.collect()
}

/// Strikes this process if the collective that begins is the one of the fault.
#[allow(clippy::disallowed_methods, reason = "a process is late in real time")]
fn befall((nth, fault): (u64, ProcessFault)) {
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    if BEGUN.fetch_add(1, Ordering::Relaxed) + 1 != nth {
        return;
    }
    let strike = |signal: &str| {
        let _ = std::process::Command::new("kill").args([signal, &std::process::id().to_string()]).status();
    };
    match fault {
        ProcessFault::Killed => strike("-KILL"),
        ProcessFault::Stopped => strike("-STOP"),
        ProcessFault::Late => std::thread::sleep(Duration::from_secs(1)),
    }
}

/// Completes the operations of a kernel that can be completed.
fn go_on(comm: &Comm, pending: &mut Vec<Pending>) -> Progress {
    if comm.is_aborted() {
        return Progress::Done;
    }
    if comm.group.options.hangs {
        return Progress::Busy;
    }
    let mut state = lock(&comm.group.state);
    let (mut lost, mut wrong) = (false, None);
    // Receives from one peer are served in order.
    let (mut blocked, mut received) = (Vec::new(), Vec::new());
    pending.retain(|operation| {
        let outcome = match operation {
            Pending::Meet { at, into } => meet(comm, &mut state, *at, *into),
            Pending::Sent { to, nth } => match state.taken.get(&(comm.rank, *to)) {
                Some(taken) if taken >= nth => Outcome::Done,
                _ => Outcome::Waits(vec![*to]),
            },
            Pending::Receive { of, .. } if blocked.contains(of) => Outcome::Waits(vec![*of]),
            Pending::Receive { into, bytes, of } => receive(comm, &mut state, *of, *into, *bytes),
        };
        match outcome {
            Outcome::Done => {
                if let Pending::Receive { of, .. } = operation {
                    received.push(*of);
                }
                false
            }
            Outcome::Waits(peers) => {
                lost |= peers.iter().any(|peer| state.gone.contains(peer));
                if let Pending::Receive { of, .. } = operation {
                    blocked.push(*of);
                }
                true
            }
            Outcome::Wrong(what) => {
                wrong.get_or_insert(what);
                true
            }
        }
    });
    drop(state);
    received.into_iter().for_each(|from| comm.group.tell(comm.rank, Event::Takes(from)));
    if lost && comm.group.options.lost == PeerLoss::Told {
        comm.state.store(REMOTE_ERROR, Ordering::Release);
    }
    match wrong {
        Some(what) if comm.group.options.tells_mismatch => Progress::Failed(what),
        _ if pending.is_empty() => Progress::Done,
        _ => Progress::Busy,
    }
}

enum Outcome {
    Done,
    /// The operation waits for these ranks.
    Waits(Vec<usize>),
    Wrong(String),
}

fn meet(comm: &Comm, state: &mut State, at: u64, into: u64) -> Outcome {
    let Some(gathering) = state.gatherings.get_mut(&at) else {
        return Outcome::Wrong(format!("no gathering {at}"));
    };
    let missing = |(rank, entry): (usize, &Option<Entry>)| entry.is_none().then_some(rank);
    let missing: Vec<usize> = gathering.entries.iter().enumerate().filter_map(missing).collect();
    let entries: Vec<&Entry> = gathering.entries.iter().flatten().collect();
    if !missing.is_empty() {
        return Outcome::Waits(missing);
    }
    let differs = |other: &&Entry| (other.0, other.1) != (entries[0].0, entries[0].1);
    if let Some(other) = entries.iter().position(differs) {
        let says =
            |(said, replayed, _): &Entry| format!("{said:?}{}", if *replayed { " in a graph" } else { "" });
        let (a, b) = (says(entries[0]), says(entries[other]));
        return Outcome::Wrong(format!("ranks disagree: rank 0 runs {a}, rank {other} runs {b}"));
    }
    let inputs: Vec<Arc<Vec<u8>>> = entries.iter().map(|entry| entry.2.clone()).collect();
    put(into, &entries[0].0.of(comm.rank, &inputs));
    gathering.taken += 1;
    if gathering.taken == comm.group.here() {
        state.gatherings.remove(&at);
    }
    Outcome::Done
}

fn receive(comm: &Comm, state: &mut State, of: usize, into: u64, bytes: usize) -> Outcome {
    let messages = state.mail.entry((of, comm.rank)).or_default();
    match messages.front() {
        None => Outcome::Waits(vec![of]),
        Some(message) if message.len() != bytes => {
            let (sent, rank) = (message.len(), comm.rank);
            Outcome::Wrong(format!(
                "ranks disagree: rank {of} sends {sent} bytes, rank {rank} receives {bytes}"
            ))
        }
        Some(message) => {
            put(into, message);
            messages.pop_front();
            Outcome::Done
        }
    }
}

fn put(into: u64, bytes: &[u8]) {
    // SAFETY: the caller who passed the address promised this many bytes of the shim's memory, which is memory of this process.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into as *mut u8, bytes.len()) };
}

fn get(from: u64, bytes: usize) -> Vec<u8> {
    let mut copy = vec![0; bytes];
    // SAFETY: the caller who passed the address promised this many bytes of the shim's memory.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, copy.as_mut_ptr(), bytes) };
    copy
}
