//! Sums between ranks that are threads of one process and share its devices: the fused kernel, each rank over its own slice.
//!
//! ```text
//! rank r    show address and event | wait for all the others' | fused over slice r of all buffers | show event | wait for all
//! ```
//!
//! What a rank shows goes over the communicator; the host waits for nothing but that. The tree is the canonical one, so the bits
//! are those of the CPU's all-reduce.

use super::{Form, Job, failed, fused, unreachable_pair};
use crate::registry::{Shape, find};
use crate::{Collective, Communicator, DType, Error, Geometry, Rank, ReduceOp, Result};
use allfold_kernels::cuda::{Event, Mark, Memory, Queue, Slice, launch};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// One rank's end.
pub(super) struct Shared {
    done: Mark,
    /// Tables by type, operator and elements of the slice.
    tables: BTreeMap<(DType, ReduceOp, u64), launch::Uploaded>,
}

/// Whether all ranks of `comm` are threads of one process that share one machine, on devices that reach each other's memory;
/// every rank asks alike.
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
    pub fn new(queue: &Queue) -> Result<Shared> {
        Ok(Shared { done: queue.record().map_err(failed)?, tables: BTreeMap::new() })
    }

    /// Queues this rank's part; afterwards the queue is behind everybody's.
    pub fn all_reduce(
        &mut self,
        comm: &Communicator,
        queue: &Queue,
        ready: &Mark,
        (dtype, op): (DType, ReduceOp),
        data: Slice<'_>,
    ) -> Result<()> {
        let ranks = comm.size() as usize;
        let mine =
            [data.address() as i64, data.device() as i64, data.len() as i64, i64::from(ready.event().0)];
        let mut all = vec![0i64; 4 * ranks];
        comm.all_gather(&mine, &mut all)?;
        if let Some(rank) = all.chunks_exact(4).position(|other| other[2] != mine[2]) {
            let (theirs, ours) = (all[4 * rank + 2], mine[2]);
            return Err(Error::Argument(format!("a sum of {ours} bytes here and {theirs} on rank {rank}")));
        }
        let peers: Vec<Memory> = all
            .chunks_exact(4)
            .map(|other| {
                #[allow(unsafe_code, reason = "threads of one process show each other addresses")]
                // SAFETY: the rank that showed it lends its buffer to this call, and leaves the call, as every rank does,
                // only when all have queued their work on it; its queue is behind that work before it uses the buffer.
                unsafe {
                    Memory::lent(queue.machine(), other[1] as usize, other[0] as u64, other[2] as usize)
                }
            })
            .collect();
        for other in all.chunks_exact(4) {
            queue.wait_for(Event(other[3] as u32)).map_err(failed)?;
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
        done.iter().try_for_each(|event| queue.wait_for(Event(*event as u32))).map_err(failed)
    }
}

fn job(dtype: DType, op: ReduceOp) -> Result<Job> {
    let algorithm = find(Collective::AllReduce, "direct")?;
    Ok(Job { algorithm, root: Rank(0), dtype, op, form: Form::Fused, segments: 1 })
}
