//! Collectives between ranks whose kernels and copies access the buffers of all ranks: threads of one process, or processes of one host
//! ([`Across`]).
//!
//! ```text
//! rank r    send address and event | wait for all other events | own part, below | send event | wait for all
//!
//! all-reduce        the fused kernel over slice r of all buffers, written to all
//! reduce            the fused kernel over slice r of all buffers, written to the root's
//! reduce-scatter    the fused kernel over block r of all buffers, written to r's own
//! all-gather        block r copied to all other buffers
//! gather            block r copied to the root's buffer
//! broadcast         the root's buffer copied to r's own
//! scatter           block r of the root's buffer copied to r's own
//! all-to-all        block r of all buffers copied to r's second buffer
//! shift             the previous rank's buffer copied to r's second buffer
//! ```
//!
//! Addresses and events are exchanged over the communicator; the host waits for nothing else. The tree is the canonical one, so the
//! bits equal those of the CPU's all-reduce.

use super::across::Across;
use super::fused;
use super::job::{DeviceCollective, ExecutionMode};
use super::reach::{MOST_RANKS, unreachable_pair};
use crate::driver::failed;
use crate::registry::{Shape, find};
use crate::{Collective, Communicator, DType, Error, Geometry, Rank, ReduceOp, Result};
use allfold_base::lock;
use allfold_cuda::{CudaEvent, Mark, Memory, Queue, Slice, launch};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One rank's state for sums over shared devices.
pub(super) struct Shared {
    done: Mark,
    /// The marks of all ranks, retained because a rank may be dropped before the other ranks have passed its last events.
    _marks: Vec<[Mark; 2]>,
    /// Whether other ranks have this rank's memory addresses and may still queue work that uses this memory.
    lent: bool,
    /// Kernel tables by collective and number of elements of the slice.
    tables: BTreeMap<(SharedCall, u64), launch::Uploaded>,
    /// What the ranks share if they are processes.
    across: Option<Box<Across>>,
}

/// A collective over buffers of one length, on which all ranks must agree: in place, or from a first to a second buffer of each rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SharedCall {
    /// All-reduce, reduce, reduce-scatter, all-gather, gather, broadcast or scatter; all-to-all or a shift (send-receive).
    pub collective: Collective,
    pub dtype: DType,
    /// The operator, where values are reduced.
    pub op: ReduceOp,
    /// The root of a collective that has one: the rank whose data all ranks receive, or that receives the data of all ranks.
    pub root: Rank,
}

impl SharedCall {
    /// The call as numbers, which ranks send to each other.
    fn numbers(self) -> [i64; 4] {
        [self.collective as i64, self.dtype as i64, self.op as i64, i64::from(self.root.0)]
    }

    /// The call in words, from its numbers.
    fn told([collective, dtype, op, root]: [i64; 4], bytes: i64) -> String {
        let collective = Collective::ALL.iter().find(|known| **known as i64 == collective);
        let dtype = DType::ALL.iter().find(|known| **known as i64 == dtype);
        let op = ReduceOp::ALL.iter().find(|known| **known as i64 == op);
        match (collective, dtype, op) {
            (Some(collective @ (Collective::AllToAll | Collective::SendRecv)), ..) => {
                format!("{}({bytes} bytes)", collective.name())
            }
            (Some(collective @ (Collective::Broadcast | Collective::Scatter)), ..) => {
                format!("{}({bytes} bytes from rank {root})", collective.name())
            }
            (Some(Collective::Gather), ..) => format!("gather({bytes} bytes to rank {root})"),
            (Some(Collective::Reduce), Some(dtype), Some(op)) => {
                format!("reduce({bytes} bytes of {dtype}, {op}, to rank {root})")
            }
            (Some(collective), Some(dtype), Some(op)) => {
                format!("{}({bytes} bytes of {dtype}, {op})", collective.name())
            }
            _ => format!("an unknown collective over {bytes} bytes"),
        }
    }
}

/// Events that are handed to the other ranks, under a unique number for each rank.
static SHOWN: Mutex<BTreeMap<i64, [Mark; 2]>> = Mutex::new(BTreeMap::new());

/// Whether the ranks of `comm` are at most 64 threads of one process, with one `CudaMachine` whose devices access each other's
/// memory. Every rank must call this.
pub(super) fn together(comm: &Communicator, queue: &Queue) -> Result<bool> {
    if !comm.of_one_process() || comm.size() > MOST_RANKS {
        return Ok(false);
    }
    let mine = [Arc::as_ptr(queue.machine()).cast::<()>() as usize as i64, queue.device() as i64];
    let mut all = vec![0i64; 2 * comm.size() as usize];
    comm.all_gather(&mine, &mut all)?;
    let devices = all.chunks_exact(2).map(|rank| rank[1] as usize);
    let shared = all.chunks_exact(2).all(|rank| rank[0] == mine[0]);
    Ok(shared && unreachable_pair(&**queue.machine(), devices).is_none())
}

impl Shared {
    /// Joins the ranks of `comm`, all of which must call this. `ready` is the event before which this rank's buffers are not ready.
    pub fn new(comm: &Communicator, queue: &Queue, ready: &Mark) -> Result<Shared> {
        static NUMBERS: AtomicI64 = AtomicI64::new(0);
        let shown = || lock(&SHOWN);
        let (done, mine) = (queue.mark().map_err(failed)?, NUMBERS.fetch_add(1, Ordering::Relaxed));
        shown().insert(mine, [ready.clone(), done.clone()]);
        let mut all = vec![0i64; comm.size() as usize];
        let told = comm.all_gather(&[mine], &mut all);
        let marks: Option<Vec<[Mark; 2]>> = all.iter().map(|number| shown().get(number).cloned()).collect();
        // The entry is removed when all ranks have read it.
        let told = told.and_then(|()| comm.barrier());
        shown().remove(&mine);
        told?;
        let _marks = marks.ok_or_else(|| Error::System("a rank did not share its event handles".into()))?;
        Ok(Shared { done, _marks, lent: false, tables: BTreeMap::new(), across: None })
    }

    /// Joins ranks that are processes, all of which must call this; or says why they share no memory.
    pub fn across(
        comm: &Communicator,
        queue: &Queue,
        deadline: Duration,
    ) -> Result<std::result::Result<Shared, String>> {
        Ok(Across::open(comm, queue, deadline)?.map(|across| Shared {
            done: across.done(),
            _marks: Vec::new(),
            lent: false,
            tables: BTreeMap::new(),
            across: Some(Box::new(across)),
        }))
    }

    /// Whether the ranks are processes.
    pub fn is_across(&self) -> bool {
        self.across.is_some()
    }

    /// Notes that another rank may not complete what this rank has begun.
    pub fn abandon(&mut self) {
        self.across.iter_mut().for_each(|across| across.broken = true);
    }

    /// Whether a sum failed half-way, so that other ranks may have queued work on this rank's memory.
    pub fn is_lent(&self) -> bool {
        self.lent
    }

    /// Queues this rank's part of a collective over `data` of all ranks, whose result is in `into`: `data` itself if the collective is in
    /// place. Later work of `queue` runs after every rank's part.
    pub fn run(
        &mut self,
        comm: &Communicator,
        queue: &Queue,
        ready: &Mark,
        call: SharedCall,
        (data, into): (Slice<'_>, Slice<'_>),
    ) -> Result<()> {
        if let Some(mut across) = self.across.take() {
            let ran = self.run_across(&mut across, call, (data, into));
            self.across = Some(across);
            return ran;
        }
        let ranks = comm.size() as usize;
        let (address, device) = (data.address() as i64, data.device() as i64);
        let (event, bytes) = (i64::from(ready.event().0), data.len() as i64);
        let all = agreed(comm, call, [address, device, event, bytes])?;
        self.lent = true;
        let peers: Vec<Memory> = all
            .iter()
            .map(|[address, device, _, bytes, ..]| {
                #[allow(unsafe_code, reason = "threads of one process show each other addresses")]
                // SAFETY: the rank that sent the address lends its buffer to this call. Every rank leaves the call only after all ranks
                // have queued their work on the buffer, and the owner's queue runs after that work before the buffer is used again.
                unsafe {
                    Memory::lent(queue.machine(), *device as usize, *address as u64, *bytes as usize)
                }
            })
            .collect();
        for other in &all {
            queue.wait_for(CudaEvent(other[2] as u32)).map_err(failed)?;
        }
        self.own_part(comm, queue, call, (&peers, into))?;
        self.done.move_to(queue).map_err(failed)?;
        let mut done = vec![0i64; ranks];
        comm.all_gather(&[i64::from(self.done.event().0)], &mut done)?;
        done.iter().try_for_each(|event| queue.wait_for(CudaEvent(*event as u32))).map_err(failed)?;
        self.lent = false;
        Ok(())
    }

    /// [`Shared::run`] for ranks that are processes.
    fn run_across(
        &mut self,
        across: &mut Across,
        call: SharedCall,
        (data, into): (Slice<'_>, Slice<'_>),
    ) -> Result<()> {
        // An error leaves the ranks at different places.
        across.broken = true;
        let fits = across.holds(data.len());
        if fits {
            across.fill(data)?;
        }
        agreed(&across.comm, call, [0, 0, 0, data.len() as i64])?;
        if !fits {
            across.grow(data.len())?;
            across.fill(data)?;
            across.comm.barrier()?;
        }
        let (comm, queue, peers) = (&across.comm, &across.queue, across.views(data.len()));
        across.places.iter().try_for_each(|place| queue.wait(&place.ready)).map_err(failed)?;
        self.own_part(comm, queue, call, (&peers, into))?;
        across.done().move_to(queue).map_err(failed)?;
        comm.barrier()?;
        across.places.iter().try_for_each(|place| queue.wait(&place.done)).map_err(failed)?;
        if into.address() == data.address() {
            queue.copy(data, peers[comm.rank().index()].all()).map_err(failed)?;
        }
        across.broken = false;
        Ok(())
    }

    /// Queues the work of this rank's part, between the events of all ranks.
    fn own_part(
        &mut self,
        comm: &Communicator,
        queue: &Queue,
        call: SharedCall,
        (peers, into): (&[Memory], Slice<'_>),
    ) -> Result<()> {
        let (rank, ranks, size) = (comm.rank().index(), peers.len(), call.dtype.size());
        if call.collective == Collective::SendRecv {
            return queue.copy(into, peers[(rank + ranks - 1) % ranks].all()).map_err(failed);
        }
        if call.collective == Collective::AllToAll {
            let block = into.len() / ranks;
            return peers.iter().enumerate().try_for_each(|(peer, sent)| {
                let sent = sent.all().part(rank * block, block).map_err(failed)?;
                queue.copy(into.part(peer * block, block).map_err(failed)?, sent).map_err(failed)
            });
        }
        if call.collective == Collective::Broadcast {
            let root = peers.get(call.root.index());
            let root = root.ok_or_else(|| Error::Argument(format!("there is no rank {}", call.root)))?;
            return match call.root.index() == rank {
                true => Ok(()),
                false => queue.copy(peers[rank].all(), root.all()).map_err(failed),
            };
        }
        if let Collective::Gather | Collective::Scatter = call.collective {
            let (bytes, root) = (into.len() / ranks, call.root.index());
            let block = |peer: usize| peers[peer].all().part(rank * bytes, bytes).map_err(failed);
            let (to, from) = if call.collective == Collective::Gather { (root, rank) } else { (rank, root) };
            return match rank == root {
                true => Ok(()),
                false => queue.copy(block(to)?, block(from)?).map_err(failed),
            };
        }
        let n = peers[rank].all().elements(size).map_err(failed)?;
        let (first, last) = (n * rank as u64 / ranks as u64, n * (rank as u64 + 1) / ranks as u64);
        if last == first {
            return Ok(());
        }
        let (at, bytes) = (first as usize * size, (last - first) as usize * size);
        let slices = peers.iter().map(|peer| peer.all().part(at, bytes).map_err(failed));
        let slices = slices.collect::<Result<Vec<_>>>()?;
        if call.collective == Collective::AllGather {
            let mut others = (0..ranks).filter(|peer| *peer != rank);
            return others.try_for_each(|peer| queue.copy(slices[peer], slices[rank]).map_err(failed));
        }
        let job = job(call.dtype, call.op)?;
        if let Entry::Vacant(place) = self.tables.entry((call, last - first)) {
            let schedule = job.algorithm.build(Shape::new(comm.size())?)?;
            let geometry = Geometry::whole(&*schedule, last - first);
            let mut tables = fused::tables(&job, &*schedule, &geometry)?;
            let only = match call.collective {
                Collective::ReduceScatter => Some(rank),
                Collective::Reduce => Some(call.root.index()),
                _ => None,
            };
            if let Some(only) = only {
                tables.chunks.iter_mut().for_each(|(_, targets)| *targets = 1 << only);
            }
            place.insert(tables.upload(queue, ranks).map_err(failed)?);
        }
        if let Some(tables) = self.tables.get(&(call, last - first)) {
            fused::run(queue, &job, tables, &slices)?;
        }
        Ok(())
    }
}

/// Compares the calls of all ranks of `comm`, whose buffers have an address, a device, an event and a number of bytes each. Returns what
/// all ranks said: these four, and the call.
fn agreed(comm: &Communicator, call: SharedCall, own: [i64; 4]) -> Result<Vec<[i64; 8]>> {
    let [[address, device, event, bytes], [collective, dtype, op, root]] = [own, call.numbers()];
    let mine = [address, device, event, bytes, collective, dtype, op, root];
    let mut all = vec![0i64; mine.len() * comm.size() as usize];
    comm.all_gather(&mine, &mut all)?;
    let (all, _) = all.as_chunks::<8>();
    if let Some((rank, other)) = all.iter().enumerate().find(|(_, other)| other[3..] != mine[3..]) {
        let told = |[_, _, _, bytes, rest @ ..]: &[i64; 8]| SharedCall::told(*rest, *bytes);
        return Err(Error::Argument(format!(
            "ranks disagree: rank {} called {}, but rank {rank} called {}",
            comm.rank(),
            told(&mine),
            told(other)
        )));
    }
    Ok(all.to_vec())
}

fn job(dtype: DType, op: ReduceOp) -> Result<DeviceCollective> {
    let algorithm = find(Collective::AllReduce, "direct")?;
    Ok(DeviceCollective { algorithm, root: Rank(0), dtype, op, mode: ExecutionMode::Fused, segments: 1 })
}
