//! Defects of our use of NCCL, over the stand-in for its library.

use crate::{Found, Seeded, of_all};
use allfold_collectives::{Communicator, DType, Error, ReduceOp, Result, World};
use allfold_cuda::{CudaMachine, Queue};
use allfold_gpu::device::{DeviceGroup, ReducePath};
use allfold_gpu::nccl::{NcclComm, StandIn, stand_in};
use allfold_standin::{Shim, ShimOptions};
use std::sync::Arc;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(20);

fn machine(options: ShimOptions, stand: StandIn) -> Arc<dyn CudaMachine> {
    let machine = Shim::with(options).unwrap();
    stand_in(&machine, stand);
    machine
}

fn queue(machine: &Arc<dyn CudaMachine>, comm: &Communicator) -> Result<Queue> {
    Queue::new(machine.clone(), comm.rank().index()).map_err(|error| Error::System(error.to_string()))
}

/// Runs a body on two ranks with a device each.
fn two(machine: &Arc<dyn CudaMachine>, body: impl Fn(NcclComm) -> Result<()> + Sync) -> Found {
    let world = World::threads(2).deadline(DEADLINE);
    let ended = world.run_each(|control| {
        let (queue, place) = (queue(machine, &control)?, (control.rank(), control.size()));
        body(NcclComm::join(queue, place, Box::new(control), DEADLINE, false)?)
    });
    of_all(ended).map(|_| ())
}

/// Each rank splits off a communicator of its own and passes a barrier in it.
pub fn d3_split(seeded: Seeded) -> Found {
    let options = ShimOptions { devices: 2, seeded, ..ShimOptions::default() };
    two(&machine(options, StandIn::default()), |mut comm| {
        let me = comm.rank().0 as i32;
        let mut child = comm.split(me, 0)?.ok_or_else(|| Error::System("no child".into()))?;
        child.barrier()?;
        child.finalize()?;
        comm.finalize()
    })
}

/// An estimate of a sum of ones leaves a one.
pub fn d4_estimate(seeded: Seeded) -> Found {
    let options = ShimOptions { devices: 2, seeded, ..ShimOptions::default() };
    two(&machine(options, StandIn::default()), |mut comm| {
        let system = |error: allfold_cuda::Error| Error::System(error.to_string());
        let data = comm.queue().upload(&[1i32]).map_err(system)?;
        let all = data.all();
        let estimate = comm.estimate(|comm| comm.all_reduce(DType::I32, ReduceOp::Sum, all, all));
        comm.wait("finish")?;
        let value = comm.queue().download::<i32>(all).map_err(system)?[0];
        match value {
            1 => estimate.map(|_| ()),
            other => Err(Error::System(format!("an estimate has reduced the data to {other}"))),
        }
    })
}

/// Two ranks on one GPU leave the choice to `auto`.
pub fn d7_one_gpu(seeded: Seeded) -> Found {
    let options = ShimOptions { devices: 2, one_gpu: true, seeded, ..ShimOptions::default() };
    let machine = machine(options, StandIn { offered: true, ..StandIn::default() });
    let opened = World::threads(2).deadline(DEADLINE).run_each(|comm| {
        let link = DeviceGroup::open(&comm, queue(&machine, &comm)?, ReducePath::Auto, DEADLINE)?;
        Ok::<_, Error>(link.described())
    });
    of_all(opened).map(|_| ())
}
