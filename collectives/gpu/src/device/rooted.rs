//! Collectives of a device group with a root: the rank that receives the data of all ranks, or sends data to all ranks.

use super::group::DeviceGroup;
use super::shared::SharedCall;
use crate::{Collective, DType, Error, Rank, ReduceOp, Result};
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
        let SharedCall { collective, root, .. } = call;
        let ranks = self.ranks();
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
        self.issue(after, call, (data, data))
    }
}

/// A call that moves bytes from or to a root.
fn moved(collective: Collective, root: Rank) -> SharedCall {
    SharedCall { collective, dtype: DType::U8, op: ReduceOp::Sum, root }
}
