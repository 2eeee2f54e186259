//! How a device group uses NCCL: whether it can, how its ranks join, and schedules over NCCL's messages.

use super::shared::SharedCall;
use crate::driver::failed;
use crate::nccl::{self, NcclComm, NcclLibrary, again};
use crate::registry::{Shape, find};
use crate::{Communicator, Geometry, ReduceOp, Result};
use allfold_cuda::{Queue, Slice};
use std::time::Duration;

/// Why the ranks do not use NCCL; `None` if every rank has NCCL and a separate GPU. Where ranks share a GPU, one rank's kernel can wait for
/// another rank whose driver call waits for this kernel, even if NCCL allows sharing: on an H200, training on 2 ranks hung.
pub(super) fn unfit(mut comm: &Communicator, queue: &Queue) -> Result<Option<String>> {
    let presence = NcclLibrary::of(queue).ask(queue, NcclLibrary::offered(queue), &mut comm)?;
    let careless = queue.machine().seeded(7);
    Ok(match (presence.lacks, presence.on_one_gpu) {
        (Some(why), _) => Some(why),
        (None, Some((a, b))) if !careless => Some(format!("ranks {a} and {b} share a GPU")),
        _ => None,
    })
}

pub(super) fn join(comm: &Communicator, queue: &Queue, deadline: Duration) -> Result<NcclComm> {
    NcclComm::join(queue.clone(), (comm.rank(), comm.size()), Box::new(again(comm)?), deadline, false)
}

/// Runs a collective as its schedule over NCCL's messages, in place.
pub(super) fn scheduled(comm: &mut NcclComm, call: SharedCall, data: Slice<'_>) -> Result<()> {
    let SharedCall { collective, dtype, op, root } = call;
    let (rank, ranks) = (comm.rank(), comm.size());
    let count = data.elements(dtype.size()).map_err(failed)?;
    // The direct algorithms are canonical and send the fewest bytes for any number of ranks.
    let schedule = find(collective, "direct")?.build(Shape::new(ranks)?.rooted(root)?)?;
    let geometry = match collective.blocked() {
        true => Geometry::blocked(&*schedule, count / u64::from(ranks)),
        false => Geometry::whole(&*schedule, count),
    };
    let divide = collective.reduces() && op == ReduceOp::Avg;
    comm.enter_schedule(count as usize, dtype, op)?;
    nccl::run_scheduled(comm, rank, &*schedule, &geometry, (dtype, op), divide, data)
}
