#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]
//! Measures the host's overhead of a collective over NCCL after its first call: no allocation, and a time that is printed.
//!
//! The NCCL stand-in's functions return at once here, so only this crate's own time is measured.

use allfold_collectives::{DType, Error, Rank, ReduceOp};
use allfold_cuda::{Queue, Slice};
use allfold_gpu::nccl::{Alone, NcclComm, StandIn, stand_in};
use allfold_standin::{FiberOrder, Shim};
use cap::Cap;
use std::alloc::System;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

type Call = fn(&mut NcclComm, Slice<'_>) -> Result<(), Error>;

/// The number of calls between waits, less than the number that may fill NCCL's queue.
const CALLS: u32 = 200;
const STRETCHES: u32 = 50;
const SUM: ReduceOp = ReduceOp::Sum;

#[test]
fn a_collective_costs_the_host_no_allocation_and_under_a_microsecond() {
    let machine = Shim::open(FiberOrder::Upwards).unwrap();
    stand_in(&machine, StandIn { instant: true, ..StandIn::default() });
    let queue = Queue::new(machine, 0).unwrap();
    let data = queue.upload(&[1.0f32; 64]).unwrap();
    let place = (Rank(0), 1);
    let mut comm = NcclComm::join(queue, place, Box::new(Alone), Duration::from_secs(10), false).unwrap();
    let calls: [(&str, Call); 6] = [
        ("all_reduce", |comm, all| comm.all_reduce(DType::F32, SUM, all, all)),
        ("broadcast", |comm, all| comm.broadcast(all, Rank(0))),
        ("reduce", |comm, all| comm.reduce(DType::F32, SUM, all, all, Rank(0))),
        ("all_gather", |comm, all| comm.all_gather(all, all)),
        ("reduce_scatter", |comm, all| comm.reduce_scatter(DType::F32, SUM, all, all)),
        ("send and recv", |comm, all| comm.send(all, Rank(0)).and_then(|()| comm.recv(all, Rank(0)))),
    ];
    for (name, call) in calls {
        // The first call makes connections and is compared; the second call allocates memory that is kept.
        (0..2).for_each(|_| call(&mut comm, data.all()).unwrap());
        let (mut time, mut bytes) = (Duration::MAX, 0);
        for _ in 0..STRETCHES {
            comm.wait("finish a stretch").unwrap();
            let (before, begun) = (ALLOCATOR.total_allocated(), Instant::now());
            (0..CALLS).for_each(|_| call(&mut comm, data.all()).unwrap());
            time = time.min(begun.elapsed());
            bytes += ALLOCATOR.total_allocated() - before;
        }
        println!(
            "{name:<15} {:>5.0} ns of host time, {bytes} bytes allocated",
            time.as_nanos() as f64 / f64::from(CALLS)
        );
        assert_eq!(bytes, 0, "{name} allocates");
    }
    comm.finalize().unwrap();
}
