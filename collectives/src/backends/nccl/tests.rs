//! The life of a communicator, over the stand-in for NCCL: how ranks join, what ends in time and what does not, splits.

use super::standin::{API, FAULT, HANGS, LOSES};
use super::{NcclComm, UniqueId, join_stand_in};
use crate::{DType, Error, Rank, ReduceOp, Result, World};
use allfold_kernels::cuda::{Machine, Order, Queue, Shim};
use std::sync::Arc;
use std::time::Duration;

/// Long enough for everything that ends, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);
/// For what never ends.
const SHORT: Duration = Duration::from_millis(200);

fn queue(machine: &Arc<dyn Machine>) -> Queue {
    Queue::new(machine.clone(), 0).unwrap()
}

/// Runs a body on every rank of a communicator that is in order.
fn ranks<R: Send>(size: u32, body: impl Fn(NcclComm) -> Result<R> + Sync) -> Vec<R> {
    let machine = Shim::open(Order::Upwards).unwrap();
    let world = World::threads(size).deadline(LONG);
    let all = world.run(|control| {
        let place = (control.rank(), control.size());
        body(join_stand_in(queue(&machine), place, Box::new(control), LONG)?)
    });
    all.unwrap()
}

/// One rank of one, whose library has a fault in its collectives.
fn faulty(fault: u8) -> NcclComm {
    let machine = Shim::open(Order::Upwards).unwrap();
    let mut id = UniqueId::by(&API).unwrap();
    id.0[FAULT] = fault;
    NcclComm::make_by(&API, queue(&machine), (Rank(0), 1), id, SHORT).unwrap()
}

fn sum(comm: &mut NcclComm, value: i32) -> Result<i32> {
    let data = comm.queue().upload(&[value]).unwrap();
    comm.all_reduce(DType::I32, ReduceOp::Sum, data.all(), data.all())?;
    comm.wait("finish a sum")?;
    Ok(comm.queue().download(data.all()).unwrap()[0])
}

#[test]
fn a_collective_that_hangs_is_a_deadline_that_names_the_rank_and_ends_the_communicator() {
    let mut comm = faulty(HANGS);
    let error = sum(&mut comm, 1).unwrap_err();
    let what = "finish a sum".to_string();
    assert_eq!(
        error,
        Error::NcclDeadline { rank: Rank(0), what, suspects: Vec::new(), after: SHORT },
        "{error}"
    );
    let text = "deadline of 200ms exceeded by rank 0: NCCL could not finish a sum; the cause is the device";
    assert_eq!(error.to_string(), text);
    assert_eq!(sum(&mut comm, 1).unwrap_err(), Error::Poisoned { cause: text.into() });
}

#[test]
fn a_rank_that_does_not_come_is_a_deadline_that_names_the_others() {
    let machine = Shim::open(Order::Upwards).unwrap();
    let id = UniqueId::by(&API).unwrap();
    let Err(error) = NcclComm::make_by(&API, queue(&machine), (Rank(1), 3), id, SHORT) else {
        panic!("one rank of three has joined alone")
    };
    let suspects = vec![Rank(0), Rank(2)];
    assert_eq!(error, Error::NcclDeadline { rank: Rank(1), what: "join".into(), suspects, after: SHORT });
    assert!(error.to_string().ends_with("the cause is among ranks 0, 2"), "{error}");
}

#[test]
fn a_lost_peer_is_an_error_with_nccls_number_and_ends_the_communicator() {
    let mut comm = faulty(LOSES);
    let error = sum(&mut comm, 1).unwrap_err();
    assert!(matches!(&error, Error::Nccl { rank: Rank(0), code: 6, .. }), "{error:?}");
    assert!(error.to_string().contains("finish a sum: a peer failed or left (ncclRemoteError)"), "{error}");
    assert!(matches!(sum(&mut comm, 1), Err(Error::Poisoned { .. })));
    assert!(matches!(comm.finalize(), Err(Error::Poisoned { .. })));
}

#[test]
fn an_abort_refuses_further_use_and_reaches_the_others() {
    let told = ranks(3, |mut comm| {
        if comm.rank() == Rank(1) {
            comm.abort("enough");
        }
        // The control channel would tell of it first: this asks NCCL alone.
        let data = comm.queue().upload(&[1i32]).unwrap();
        let from = Rank((comm.rank().0 + 1) % 3);
        Ok(comm.recv(data.all(), from).map_err(|error| error.to_string()))
    });
    assert_eq!(told[1], Err("this communicator has failed before: aborted by rank 1: enough".into()));
    for rank in [0, 2] {
        let error = told[rank].clone().unwrap_err();
        assert!(error.contains("ncclRemoteError"), "rank {rank}: {error}");
    }
}

#[test]
fn ranks_that_call_otherwise_are_told_before_anything_runs() {
    let told = ranks(2, |mut comm| {
        let data = comm.queue().upload(&[1i32, 2]).unwrap();
        let n = if comm.rank() == Rank(0) { 4 } else { 8 };
        let part = data.all().part(0, n).unwrap();
        Ok(comm.all_reduce(DType::I32, ReduceOp::Sum, part, part).unwrap_err().to_string())
    });
    let text = "ranks disagree: rank 0 called all_reduce(1 x i32, sum) as operation 1, but rank 1 called all_reduce(2 x i32, sum) as operation 1";
    assert_eq!(told, [text, text]);
}

#[test]
fn a_split_numbers_ranks_by_colour_and_key_and_its_parent_goes_on() {
    let sums = ranks(5, |mut comm| {
        let me = comm.rank().0 as i32;
        // Rank 4 takes no part; the others backwards.
        let child = comm.split(if me == 4 { -1 } else { me % 2 }, -me)?;
        let within = match child {
            Some(mut child) => Some((child.rank().0, child.size(), sum(&mut child, me)?)),
            None => None,
        };
        let all = sum(&mut comm, me)?;
        comm.finalize()?;
        Ok((within, all))
    });
    let within = [Some((1, 2, 2)), Some((1, 2, 4)), Some((0, 2, 2)), Some((0, 2, 4)), None];
    assert_eq!(sums, within.map(|within| (within, 10)));
}

#[test]
fn the_ranks_that_are_left_shrink_without_the_lost_one() {
    let sums = ranks(4, |comm| {
        let me = comm.rank().0 as i32;
        if me == 2 {
            assert!(comm.shrink(&[Rank(2)]).is_err());
            return Ok(None);
        }
        let mut left = comm.shrink(&[Rank(2)])?;
        Ok(Some((left.rank().0, left.size(), sum(&mut left, me)?)))
    });
    assert_eq!(sums, [Some((0, 3, 4)), Some((1, 3, 4)), None, Some((2, 3, 4))]);
}

#[test]
fn an_estimate_runs_nothing() {
    let estimates = ranks(2, |mut comm| {
        let data = comm.queue().upload(&[3i32]).unwrap();
        let all = data.all();
        let us = comm.estimate(|comm| comm.all_reduce(DType::I32, ReduceOp::Sum, all, all))?;
        Ok((us, comm.queue().download::<i32>(all).unwrap()[0]))
    });
    assert_eq!(estimates, [(1.5, 3), (1.5, 3)]);
}

#[test]
fn buffers_that_do_not_fit_and_types_that_nccl_has_not_are_refused() {
    ranks(1, |mut comm| {
        let (a, b) = (comm.queue().upload(&[0i16; 4]).unwrap(), comm.queue().upload(&[0u8; 6]).unwrap());
        let refused = |answer: Result<()>| matches!(answer, Err(Error::Argument(_)));
        assert!(refused(comm.all_reduce(DType::I16, ReduceOp::Sum, a.all(), a.all())));
        assert!(refused(comm.all_reduce(DType::U8, ReduceOp::Sum, a.all(), b.all())));
        assert!(refused(comm.all_gather(a.all(), b.all())));
        assert!(refused(comm.broadcast(a.all(), Rank(1))));
        assert!(refused(comm.gather(a.all(), None, Rank(0))));
        comm.finalize()
    });
}
