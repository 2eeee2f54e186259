//! Tests of groups, estimates, calls on separate threads, and captured collectives.

use super::super::Registration;
use super::super::standin::threads_started;
use super::*;
use allfold_cuda::CudaGraph;

/// Estimates a sum, and returns for each rank the estimate and the rank's value afterwards.
fn estimates(seeded: &'static [u8]) -> Vec<(Result<f64>, i32)> {
    let machine = shim(2, seeded, StandIn::default());
    let all = each(&machine, 2, LONG, |mut comm| {
        sum(&mut comm, 1)?;
        let data = comm.queue().upload(&[3i32]).unwrap();
        let all = data.all();
        let us = comm.estimate(|comm| comm.all_reduce(DType::I32, ReduceOp::Sum, all, all));
        comm.wait("finish")?;
        if seeded.is_empty() {
            // An inner group is part of the estimate: two sends and two receives.
            let pair = comm.queue().upload(&[1i32, 2]).unwrap();
            assert_eq!(comm.estimate(|comm| comm.all_to_all(pair.all(), pair.all())), Ok(6.0));
        }
        Ok((us, comm.queue().download::<i32>(all).unwrap()[0]))
    });
    all.into_iter().map(Result::unwrap).collect()
}

#[test]
fn defect_4_an_estimate_runs_nothing() {
    for (us, value) in estimates(&[4]) {
        // A non-blocking communicator runs the group and estimates -1, so the values of the two ranks are summed: 3 + 3.
        assert!(us.is_err(), "{us:?}");
        assert_eq!(value, 6);
    }
    assert_eq!(estimates(&[]), [(Ok(1.5), 3), (Ok(1.5), 3)]);
}

/// The number of threads that the library starts for ten sums after the first one.
fn threads(seeded: &'static [u8]) -> u64 {
    let machine = shim(1, seeded, StandIn::default());
    let counted = each(&machine, 1, LONG, |mut comm| {
        sum(&mut comm, 1)?;
        let before = threads_started();
        (0..10).try_for_each(|_| sum(&mut comm, 1).map(drop))?;
        Ok(threads_started() - before)
    });
    *counted[0].as_ref().unwrap()
}

#[test]
fn defect_11_a_call_costs_no_thread() {
    assert!(threads(&[11]) >= 10);
    // Other tests of this process also start threads of the library, so the least of several counts is taken.
    assert_eq!((0..5).map(|_| threads(&[])).min(), Some(0));
}

#[test]
fn a_refused_call_leaves_no_group_open() {
    ranks(2, |mut comm| {
        let data = comm.queue().upload(&[1i32, 2]).unwrap();
        let refused = comm.group("exchange", |comm| {
            comm.post_send(data.all(), Rank(1))?;
            comm.post_recv(data.all(), Rank(7))
        });
        assert!(matches!(refused, Err(Error::Argument(_))), "{refused:?}");
        // A group that is still open would prevent this sum from being started.
        assert_eq!(sum(&mut comm, 2)?, 4);
        comm.finalize()
    });
}

#[test]
fn a_call_that_nccl_refuses_within_a_group_closes_the_group_first() {
    let machine = shim(2, &[], StandIn::default());
    let told = each(&machine, 2, LONG, |mut comm| {
        sum(&mut comm, 1)?;
        let data = comm.queue().upload(&[1i32]).unwrap();
        // There is no rank 9: the group is closed, the communicator has failed, and no open group delays its abort.
        let from = data.all().address();
        let refused = comm.group("exchange", |comm| {
            comm.posted = vec![super::super::call::NcclCall::Send { from, bytes: 4, to: 9 }; 2];
            Ok(())
        });
        assert!(matches!(refused, Err(Error::Nccl { code: 4, .. })), "{refused:?}");
        assert!(comm.abandon());
        Ok(())
    });
    told.into_iter().for_each(Result::unwrap);
}

#[test]
fn disagreeing_ranks_get_the_error_before_any_call_runs() {
    let machine = shim(2, &[], StandIn::default());
    let world = World::threads(2).deadline(LONG);
    let told = world.run(|control| {
        let place = (control.rank(), control.size());
        let mut comm = NcclComm::join(queue(&machine, place.0.0), place, Box::new(control), LONG, true)?;
        let data = comm.queue().upload(&[1i32, 2]).unwrap();
        let n = if comm.rank() == Rank(0) { 4 } else { 8 };
        let part = data.all().part(0, n).unwrap();
        Ok::<_, Error>(comm.all_reduce(DType::I32, ReduceOp::Sum, part, part).unwrap_err().to_string())
    });
    let text = "ranks disagree: rank 0 called all_reduce(1 x i32, sum) as operation 1, but rank 1 called all_reduce(2 x i32, sum) as operation 1";
    assert_eq!(told.unwrap(), [text, text]);
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

#[test]
fn more_calls_than_nccls_queue_holds_still_have_a_deadline() {
    ranks(2, |mut comm| {
        let data = comm.queue().upload(&[1i32]).unwrap();
        for _ in 0..600 {
            comm.all_reduce(DType::I32, ReduceOp::Max, data.all(), data.all())?;
        }
        comm.wait("finish many")?;
        assert_eq!(comm.outstanding, 0);
        comm.finalize()
    });
}

/// A communicator whose work another communicator's wait has covered starts no threads for its calls.
#[test]
fn a_communicator_that_nobody_waits_on_starts_no_thread_for_each_call() {
    ranks(2, |mut comm| {
        let data = comm.queue().upload(&[1i32]).unwrap();
        for _ in 0..3 {
            for _ in 0..300 {
                comm.all_reduce(DType::I32, ReduceOp::Max, data.all(), data.all())?;
            }
            // Another communicator's wait has covered these calls.
            comm.queue().finish().unwrap();
            comm.settled();
        }
        assert_eq!(comm.outstanding, 0);
        comm.finalize()
    });
}

/// Captures a sum as a graph.
fn captured(comm: &mut NcclComm, data: &allfold_cuda::Memory) -> Result<CudaGraph> {
    let queue = comm.queue().clone();
    queue.machine().begin_capture(queue.stream()).unwrap();
    comm.all_reduce(DType::I32, ReduceOp::Sum, data.all(), data.all())?;
    Ok(queue.machine().end_capture(queue.stream()).unwrap())
}

#[test]
fn a_captured_sum_is_replayed() {
    let doubled = ranks(2, |mut comm| {
        sum(&mut comm, 1)?;
        let queue = comm.queue().clone();
        let data = queue.upload(&[1i32]).unwrap();
        let graph = captured(&mut comm, &data)?;
        for _ in 0..3 {
            // SAFETY: the buffer lives longer than the graph.
            unsafe { queue.machine().replay(queue.stream(), graph) }.unwrap();
        }
        comm.wait("replay")?;
        let value = queue.download::<i32>(data.all()).unwrap()[0];
        queue.machine().forget(graph);
        comm.finalize()?;
        Ok(value)
    });
    assert_eq!(doubled, [8, 8]);
}

#[test]
fn defect_19_a_sum_that_only_one_rank_captured_is_told_as_a_disagreement() {
    let machine = shim(2, &[], StandIn::default());
    let told = each(&machine, 2, LONG, |mut comm| {
        sum(&mut comm, 1)?;
        let queue = comm.queue().clone();
        let data = queue.upload(&[1i32]).unwrap();
        if comm.rank() == Rank(0) {
            let graph = captured(&mut comm, &data)?;
            // SAFETY: the buffer lives longer than the graph.
            unsafe { queue.machine().replay(queue.stream(), graph) }.unwrap();
            let told = comm.wait("replay");
            queue.machine().forget(graph);
            comm.abandon();
            return told;
        }
        let told = comm
            .all_reduce(DType::I32, ReduceOp::Sum, data.all(), data.all())
            .and_then(|()| comm.wait("finish a sum"));
        comm.abandon();
        told
    });
    for told in told {
        let text = told.unwrap_err().to_string();
        assert!(text.contains("ranks disagree") && text.contains("in a graph"), "{text}");
    }
}

/// Where NCCL registers the buffers of a graph, a captured call waits for the other ranks within NCCL.
#[test]
fn a_captured_call_that_waits_for_a_stopped_rank_ends_by_the_deadline() {
    let options = StandIn { registers: true, lost: PeerLoss::Silent, ..StandIn::default() };
    let machine = shim(2, &[], options);
    let told = each(&machine, 2, LONG, |mut comm| {
        let (queue, rank) = (comm.queue().clone(), comm.rank());
        let data = queue.upload(&[1i32]).unwrap();
        sum(&mut comm, 1)?;
        let graph = captured(&mut comm, &data)?;
        queue.machine().forget(graph);
        if rank == Rank(1) {
            die(comm);
            return Ok(());
        }
        comm.deadline = SHORT;
        let told = captured(&mut comm, &data).map(drop);
        queue.machine().end_capture(queue.stream()).map(|graph| queue.machine().forget(graph)).unwrap();
        comm.abandon();
        told
    });
    assert_eq!(told[1], Ok(()));
    assert!(matches!(told[0], Err(Error::NcclDeadline { .. })), "{told:?}");
}

#[test]
fn registered_buffers_are_freed_after_their_registration() {
    for kind in [None, Some(Registration::Buffer), Some(Registration::Window)] {
        ranks(3, |mut comm| {
            let data = comm.buffer(8, kind)?;
            comm.queue().write(data.all(), &[1i32, 2]).unwrap();
            comm.all_reduce(DType::I32, ReduceOp::Sum, data.all(), data.all())?;
            comm.wait("finish a sum")?;
            assert_eq!(comm.queue().download::<i32>(data.all()).unwrap(), [3, 6]);
            comm.free(data)?;
            comm.finalize()
        });
    }
}

#[test]
fn windows_need_a_newer_nccl_than_registered_buffers() {
    let machine = shim(2, &[], StandIn { version: (2, 21), ..StandIn::default() });
    let told = each(&machine, 2, LONG, |mut comm| {
        let data = comm.buffer(8, Some(Registration::Buffer))?;
        comm.free(data)?;
        let told = comm.buffer(8, Some(Registration::Window)).map(drop);
        comm.finalize()?;
        Ok(told)
    });
    for told in told {
        let told = told.unwrap().unwrap_err().to_string();
        assert!(told.contains("no ncclCommWindowRegister; 2.27 or newer"), "{told}");
    }
}

#[test]
fn calls_are_replayed_as_often_as_asked() {
    let values = ranks(2, |mut comm| {
        sum(&mut comm, 1)?;
        let data = comm.queue().upload(&[1i32]).unwrap();
        let double = |comm: &mut NcclComm| comm.all_reduce(DType::I32, ReduceOp::Sum, data.all(), data.all());
        comm.replaying(
            |comm| (0..2).try_for_each(|_| double(comm)),
            |comm, replay| {
                (0..3).try_for_each(|_| replay())?;
                comm.wait("replay")
            },
        )?;
        let value = comm.queue().download::<i32>(data.all()).unwrap()[0];
        comm.finalize()?;
        Ok(value)
    });
    assert_eq!(values, [64, 64], "two calls, three times");
}
