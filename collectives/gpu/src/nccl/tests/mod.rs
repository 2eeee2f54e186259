//! Tests of this crate's use of NCCL, on the stand-in for the NCCL library.
//!
//! | file | shows |
//! |---|---|
//! | `life` | how communicators begin, split, shrink and end; that the NCCL stand-in finds defects that are put back in |
//! | `calls` | groups, estimates, calls on separate threads, captured collectives |
//! | `places` | versions, and ranks that share a GPU |
//! | `rules` | a table of the stand-in's functions: the rule of each, and the test that shows it |
//! | `faults` | the fault matrix: dead, slow, disagreeing and late ranks |

mod calls;
mod faults;
mod life;
mod places;
mod rules;

use super::standin::{PeerLoss, StandIn, stand_in};
use super::{NcclComm, UniqueId};
use crate::{DType, Error, Rank, ReduceOp, Result, World};
use allfold_cuda::{CudaMachine, Queue};
use allfold_standin::{Shim, ShimOptions};
use std::sync::Arc;
use std::time::Duration;

/// A deadline for calls that end, long enough on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// A deadline for calls that never end.
const SHORT: Duration = Duration::from_millis(400);

/// A shim with a device for every rank.
fn shim(devices: u32, seeded: &'static [u8], options: StandIn) -> Arc<dyn CudaMachine> {
    let machine =
        Shim::with(ShimOptions { devices: devices as usize, seeded, ..ShimOptions::default() }).unwrap();
    stand_in(&machine, options);
    machine
}

fn queue(machine: &Arc<dyn CudaMachine>, rank: u32) -> Queue {
    Queue::new(machine.clone(), rank as usize % machine.devices()).unwrap()
}

/// Runs a body on every rank of a communicator with this deadline, and returns the result of each rank.
fn each<R: Send>(
    machine: &Arc<dyn CudaMachine>,
    size: u32,
    deadline: Duration,
    body: impl Fn(NcclComm) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let world = World::threads(size).deadline(LONG);
    let report = world.run_each(|control| {
        let (rank, size) = (control.rank(), control.size());
        let mut comm = NcclComm::join(queue(machine, rank.0), (rank, size), Box::new(control), LONG, false)?;
        comm.deadline = deadline;
        body(comm)
    });
    report.unwrap().ranks
}

/// Runs `body` on all ranks with the deadline `LONG`, and expects success.
fn ranks<R: Send>(size: u32, body: impl Fn(NcclComm) -> Result<R> + Sync) -> Vec<R> {
    let machine = shim(size, &[], StandIn::default());
    each(&machine, size, LONG, body).into_iter().collect::<Result<Vec<R>>>().unwrap()
}

/// The sum of a value over all ranks.
fn sum(comm: &mut NcclComm, value: i32) -> Result<i32> {
    let data = comm.queue().upload(&[value]).unwrap();
    let summed = comm
        .all_reduce(DType::I32, ReduceOp::Sum, data.all(), data.all())
        .and_then(|()| comm.wait("finish a sum"));
    if let Err(error) = summed {
        // The communicator is aborted before the memory is freed.
        comm.abandon();
        return Err(error);
    }
    Ok(comm.queue().download(data.all()).unwrap()[0])
}

/// Simulates a rank that dies: its kernels stop, and its communicator is neither finalized nor aborted.
fn die(mut comm: NcclComm) {
    super::standin::die(comm.raw);
    comm.raw = std::ptr::null_mut();
}
