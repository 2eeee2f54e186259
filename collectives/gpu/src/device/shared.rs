//! Sums between ranks that are threads of one process: each rank runs the fused kernel over its own slice of all buffers.
//!
//! ```text
//! rank r    show address and event | wait for all other events | fused over slice r of all buffers | show event | wait for all
//! ```
//!
//! Addresses and events are exchanged over the communicator; the host waits for nothing else. The tree is the canonical one, so the
//! bits equal those of the CPU's all-reduce.

use super::fused;
use super::job::{DeviceCollective, ExecutionMode};
use super::reach::unreachable_pair;
use crate::driver::failed;
use crate::registry::{Shape, find};
use crate::{Collective, Communicator, DType, Error, Geometry, Rank, ReduceOp, Result};
use allfold_base::lock;
use allfold_kernels::cuda::{CudaEvent, Mark, Memory, Queue, Slice, launch};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

/// One rank's state for sums over shared devices.
pub(super) struct Shared {
    done: Mark,
    /// The marks of all ranks. They are kept because a rank may be dropped before the others have passed its last events.
    _marks: Vec<[Mark; 2]>,
    /// Whether other ranks know this rank's memory and may still queue work that uses it.
    lent: bool,
    /// Kernel tables by type, operator and number of elements of the slice.
    tables: BTreeMap<(DType, ReduceOp, u64), launch::Uploaded>,
}

/// Events that ranks show to each other, under a unique number for each rank.
static SHOWN: Mutex<BTreeMap<i64, [Mark; 2]>> = Mutex::new(BTreeMap::new());

/// Whether the ranks of `comm` are at most 64 threads of one process, with one `CudaMachine` whose devices access each other's
/// memory. Every rank must call this.
pub(super) fn together(comm: &Communicator, queue: &Queue) -> Result<bool> {
    if !comm.of_one_process() || comm.size() > 64 {
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
        let (done, mine) = (queue.record().map_err(failed)?, NUMBERS.fetch_add(1, Ordering::Relaxed));
        shown().insert(mine, [ready.clone(), done.clone()]);
        let mut all = vec![0i64; comm.size() as usize];
        let told = comm.all_gather(&[mine], &mut all);
        let marks: Option<Vec<[Mark; 2]>> = all.iter().map(|number| shown().get(number).cloned()).collect();
        // The entry is removed when all ranks have read it.
        let told = told.and_then(|()| comm.barrier());
        shown().remove(&mine);
        told?;
        let _marks = marks.ok_or_else(|| Error::System("a rank did not share its event handles".into()))?;
        Ok(Shared { done, _marks, lent: false, tables: BTreeMap::new() })
    }

    /// Whether a sum failed half-way, so that other ranks may have queued work on this rank's memory.
    pub fn is_lent(&self) -> bool {
        self.lent
    }

    /// Queues this rank's part of an all-reduce. Later work of `queue` runs after every rank's part.
    pub fn all_reduce(
        &mut self,
        comm: &Communicator,
        queue: &Queue,
        ready: &Mark,
        (dtype, op): (DType, ReduceOp),
        data: Slice<'_>,
    ) -> Result<()> {
        let ranks = comm.size() as usize;
        // One number encodes element type and operator, on which the ranks must agree.
        let kind = |dtype: DType, op: ReduceOp| dtype as i64 * 16 + op as i64;
        let (address, device) = (data.address() as i64, data.device() as i64);
        let mine = [address, device, data.len() as i64, i64::from(ready.event().0), kind(dtype, op)];
        let mut all = vec![0i64; mine.len() * ranks];
        comm.all_gather(&mine, &mut all)?;
        let differs = |other: &[i64]| other[2] != mine[2] || other[4] != mine[4];
        if let Some((rank, other)) = all.chunks_exact(5).enumerate().find(|(_, other)| differs(other)) {
            let kinds = DType::ALL.iter().flat_map(|dtype| ReduceOp::ALL.iter().map(move |op| (*dtype, *op)));
            let theirs = kinds.into_iter().find(|(dtype, op)| kind(*dtype, *op) == other[4]);
            let theirs = theirs.map_or_else(String::new, |(dtype, op)| format!("{dtype}, {op}"));
            return Err(Error::Argument(format!(
                "ranks disagree: rank {} called all_reduce({} bytes of {dtype}, {op}), but rank {rank} called \
                 all_reduce({} bytes of {theirs})",
                comm.rank(),
                mine[2],
                other[2]
            )));
        }
        self.lent = true;
        let peers: Vec<Memory> = all
            .chunks_exact(5)
            .map(|other| {
                #[allow(unsafe_code, reason = "threads of one process show each other addresses")]
                // SAFETY: the rank that showed the address lends its buffer to this call. Every rank leaves the call only after all
                // ranks have queued their work on the buffer, and the owner's queue runs after that work before the buffer is used
                // again.
                unsafe {
                    Memory::lent(queue.machine(), other[1] as usize, other[0] as u64, other[2] as usize)
                }
            })
            .collect();
        for other in all.chunks_exact(5) {
            queue.wait_for(CudaEvent(other[3] as u32)).map_err(failed)?;
        }
        let n = data.elements(dtype.size()).map_err(failed)?;
        let rank = u64::from(comm.rank().0);
        let (first, last) = (n * rank / ranks as u64, n * (rank + 1) / ranks as u64);
        if last > first {
            let (at, bytes) = (first as usize * dtype.size(), (last - first) as usize * dtype.size());
            let slices = peers.iter().map(|peer| peer.all().part(at, bytes).map_err(failed));
            let slices = slices.collect::<Result<Vec<_>>>()?;
            let job = job(dtype, op)?;
            let key = (dtype, op, last - first);
            if let Entry::Vacant(place) = self.tables.entry(key) {
                let schedule = job.algorithm.build(Shape::new(comm.size())?);
                let geometry = Geometry::whole(&*schedule, last - first);
                let tables = fused::tables(&job, &*schedule, &geometry)?;
                place.insert(tables.upload(queue, ranks).map_err(failed)?);
            }
            if let Some(tables) = self.tables.get(&key) {
                fused::run(queue, &job, tables, &slices)?;
            }
        }
        self.done.move_to(queue).map_err(failed)?;
        let mut done = vec![0i64; ranks];
        comm.all_gather(&[i64::from(self.done.event().0)], &mut done)?;
        done.iter().try_for_each(|event| queue.wait_for(CudaEvent(*event as u32))).map_err(failed)?;
        self.lent = false;
        Ok(())
    }
}

fn job(dtype: DType, op: ReduceOp) -> Result<DeviceCollective> {
    let algorithm = find(Collective::AllReduce, "direct")?;
    Ok(DeviceCollective { algorithm, root: Rank(0), dtype, op, mode: ExecutionMode::Fused, segments: 1 })
}
