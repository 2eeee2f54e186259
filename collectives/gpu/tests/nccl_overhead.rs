#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]
//! Measures the host's overhead of a collective over NCCL after its first call, in one process and between processes: no allocation, and a
//! time that is printed.
//!
//! The NCCL stand-in's functions return at once here, so only this crate's own time is measured.

mod processes;

use allfold_collectives::{DType, Error, Rank, ReduceOp};
use allfold_cuda::{Gpu, Queue, Slice};
use allfold_gpu::nccl::{Alone, NcclComm, StandIn, across_processes, stand_in};
use allfold_standin::{FiberOrder, Shim, StandinOptions, install};
use cap::Cap;
use processes::{joined, ranks};
use std::alloc::System;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

type Call = fn(&mut NcclComm, Slice<'_>) -> Result<(), Error>;

/// The number of calls between waits, less than the number that may fill NCCL's queue.
const CALLS: u32 = 200;
const STRETCHES: u32 = 50;
const SUM: ReduceOp = ReduceOp::Sum;
/// Held by a test, since the allocator counts for all threads.
static ALONE: Mutex<()> = Mutex::new(());

/// Prints the time of each collective's call, and returns the least and the sum of the bytes that are allocated in a stretch of calls.
fn measured(comm: &mut NcclComm, data: Slice<'_>) -> Vec<(&'static str, u64, u64)> {
    let calls: [(&str, Call); 6] = [
        ("all_reduce", |comm, all| comm.all_reduce(DType::F32, SUM, all, all)),
        ("broadcast", |comm, all| comm.broadcast(all, Rank(0))),
        ("reduce", |comm, all| comm.reduce(DType::F32, SUM, all, all, Rank(0))),
        ("all_gather", |comm, all| comm.all_gather(part(comm, all), all)),
        ("reduce_scatter", |comm, all| comm.reduce_scatter(DType::F32, SUM, all, part(comm, all))),
        ("send and recv", |comm, all| {
            let own = comm.rank();
            comm.grouped(|comm| comm.send(all, own).and_then(|()| comm.recv(all, own)))
        }),
    ];
    let found = calls.map(|(name, call)| {
        // The first call makes connections and is compared; the second call allocates memory that is kept.
        (0..2).for_each(|_| call(comm, data).unwrap());
        let (mut time, mut least, mut sum) = (Duration::MAX, u64::MAX, 0);
        for _ in 0..STRETCHES {
            comm.wait("finish a stretch").unwrap();
            let (before, begun) = (ALLOCATOR.total_allocated(), Instant::now());
            (0..CALLS).for_each(|_| call(comm, data).unwrap());
            time = time.min(begun.elapsed());
            let bytes = (ALLOCATOR.total_allocated() - before) as u64;
            (least, sum) = (least.min(bytes), sum + bytes);
        }
        let each = time.as_nanos() as f64 / f64::from(CALLS);
        println!("{name:<15} {each:>5.0} ns of host time of {} ranks, {least} bytes allocated", comm.size());
        (name, least, sum)
    });
    found.into()
}

/// A rank's block of a buffer.
fn part<'a>(comm: &NcclComm, all: Slice<'a>) -> Slice<'a> {
    let block = all.len() / comm.size() as usize;
    all.part(comm.rank().index() * block, block).unwrap()
}

#[test]
fn a_collective_costs_the_host_no_allocation_and_under_a_microsecond() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let machine = Shim::open(FiberOrder::Upwards).unwrap();
    stand_in(&machine, StandIn { instant: true, ..StandIn::default() });
    let queue = Queue::new(machine, 0).unwrap();
    let data = queue.upload(&[1.0f32; 64]).unwrap();
    let place = (Rank(0), 1);
    let mut comm = NcclComm::join(queue, place, Box::new(Alone), Duration::from_secs(10), false).unwrap();
    for (name, _, bytes) in measured(&mut comm, data.all()) {
        assert_eq!(bytes, 0, "{name} allocates");
    }
    comm.finalize().unwrap();
}

#[test]
fn a_collective_between_processes_costs_the_host_no_allocation_either() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const NAME: &str = "a_collective_between_processes_costs_the_host_no_allocation_either";
    let Some(comm) = joined() else {
        for text in ranks(NAME, 2, |_| Vec::new()) {
            text.lines().filter(|line| line.contains("host time")).for_each(|line| println!("{line}"));
        }
        return;
    };
    install(StandinOptions { devices: 2, delay: Duration::ZERO, ..StandinOptions::default() }).unwrap();
    across_processes(StandIn { instant: true, ..StandIn::default() });
    let place = (comm.rank(), comm.size());
    let queue = Queue::new(Gpu::open().unwrap(), place.0.index()).unwrap();
    let data = queue.upload(&[1.0f32; 64]).unwrap();
    let mut comm = NcclComm::join(queue, place, Box::new(comm), Duration::from_secs(60), false).unwrap();
    for (name, least, _) in measured(&mut comm, data.all()) {
        // Other threads of the process, such as those of heartbeats, may allocate in some stretch; a call that allocates does in all.
        assert_eq!(least, 0, "{name} allocates");
    }
    comm.finalize().unwrap();
}
