//! Collectives of a device group with a root: the rank that receives the data of all ranks, or sends data to all ranks.

use super::group::{DeviceGroup, Over, scheduled};
use super::host::over_host;
use super::shared::SharedCall;
use crate::driver::failed;
use crate::{Collective, Communicator, DType, Error, Rank, ReduceOp, Result};
use allfold_cuda::{Queue, Slice};

impl DeviceGroup<'_> {
    /// Queues the reduction of `data` over all ranks to rank `root`, in place there, after all earlier work of `after`. The other ranks'
    /// `data` are undefined afterwards.
    ///
    /// # Errors
    /// The errors of [`DeviceGroup::all_reduce`]; a root that is no rank of the group.
    pub fn reduce(
        &mut self,
        after: &Queue,
        (dtype, op): (DType, ReduceOp),
        data: Slice<'_>,
        root: Rank,
    ) -> Result<()> {
        self.rooted(after, SharedCall { collective: Collective::Reduce, dtype, op, root }, data)
    }

    /// Copies block r of rank r's `data`, which has a block for each rank, to rank `root`, in place, after all earlier work of `after`.
    ///
    /// # Errors
    /// The errors of [`DeviceGroup::reduce`]; a length that does not divide into equal blocks.
    pub fn gather(&mut self, after: &Queue, data: Slice<'_>, root: Rank) -> Result<()> {
        self.rooted(after, moved(Collective::Gather, root), data)
    }

    /// Copies block r of the `data` of rank `root`, which has a block for each rank, to rank r, in place, after all earlier work of
    /// `after`.
    ///
    /// # Errors
    /// The errors of [`DeviceGroup::gather`].
    pub fn scatter(&mut self, after: &Queue, data: Slice<'_>, root: Rank) -> Result<()> {
        self.rooted(after, moved(Collective::Scatter, root), data)
    }

    fn rooted(&mut self, after: &Queue, call: SharedCall, data: Slice<'_>) -> Result<()> {
        let SharedCall { collective, dtype, op, root } = call;
        let (rank, ranks) = (self.rank(), self.ranks());
        if root.0 >= ranks {
            let last = ranks - 1;
            return Err(Error::Argument(format!(
                "rank {root} is outside the group: its ranks are 0 to {last}"
            )));
        }
        let bytes = data.len() / ranks as usize;
        if collective != Collective::Reduce && bytes * ranks as usize != data.len() {
            let all = data.len();
            return Err(Error::Argument(format!("{all} bytes cannot be cut into {ranks} equal blocks")));
        }
        if ranks == 1 {
            return Ok(());
        }
        self.fork(after)?;
        let block = match collective {
            Collective::Reduce => data,
            _ => data.part(rank.index() * bytes, bytes).map_err(failed)?,
        };
        let whole = (rank == root).then_some(data);
        match &mut self.over {
            Over::Nobody => Ok(()),
            // Without a reduction a schedule has no order of its own to preserve.
            Over::Nccl(comm) | Over::Scheduled(comm) if collective == Collective::Gather => {
                comm.gather(block, whole, root)
            }
            Over::Nccl(comm) | Over::Scheduled(comm) if collective == Collective::Scatter => {
                comm.scatter(whole, block, root)
            }
            Over::Nccl(comm) => comm.reduce(dtype, op, data, data, root),
            Over::Scheduled(comm) => scheduled(comm, call, data),
            Over::Device(shared) => shared.run(&self.comm, &self.queue, &self.marks.0, call, (data, data)),
            Over::Host if collective == Collective::Reduce => {
                over_host(&self.comm, &self.queue, call, (data, data))
            }
            Over::Host => moved_by_host(&self.comm, &self.queue, call, (data, block)),
        }
    }
}

/// A call that moves bytes from or to a root.
fn moved(collective: Collective, root: Rank) -> SharedCall {
    SharedCall { collective, dtype: DType::U8, op: ReduceOp::Sum, root }
}

/// Gathers or scatters by copies to host memory.
fn moved_by_host(
    comm: &Communicator,
    queue: &Queue,
    SharedCall { collective, root, .. }: SharedCall,
    (data, block): (Slice<'_>, Slice<'_>),
) -> Result<()> {
    let is_root = comm.rank() == root;
    let read = |from: Slice<'_>| queue.download::<u8>(from).map_err(failed);
    if collective == Collective::Gather {
        let mut all = if is_root { vec![0; data.len()] } else { Vec::new() };
        comm.gather(&read(block)?, &mut all, root)?;
        return if is_root { queue.write(data, &all).map_err(failed) } else { Ok(()) };
    }
    let all = if is_root { read(data)? } else { Vec::new() };
    let mut own = vec![0; block.len()];
    comm.scatter(&all, &mut own, root)?;
    queue.write(block, &own).map_err(failed)
}
