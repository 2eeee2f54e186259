//! Tests of how communicators begin, split, shrink and end.

use super::*;

#[test]
fn a_rank_that_does_not_come_is_a_deadline_that_names_the_others() {
    let machine = shim(1, &[], StandIn::default());
    let id = UniqueId::by(super::super::NcclLibrary::of(&queue(&machine, 0)).api.unwrap()).unwrap();
    let Err(error) = NcclComm::make(queue(&machine, 0), (Rank(1), 3), id, SHORT) else {
        panic!("one rank of three has joined alone")
    };
    let suspects = vec![Rank(0), Rank(2)];
    assert_eq!(error, Error::NcclDeadline { rank: Rank(1), what: "join".into(), suspects, after: SHORT });
    assert!(error.to_string().ends_with("the cause is among ranks 0, 2"), "{error}");
}

#[test]
fn a_collective_that_hangs_is_a_deadline_and_ends_the_communicator() {
    let machine = shim(1, &[], StandIn { hangs: true, ..StandIn::default() });
    each(&machine, 1, SHORT, |mut comm| {
        let error = sum(&mut comm, 1).unwrap_err();
        let what = "finish a sum".to_string();
        assert_eq!(error, Error::NcclDeadline { rank: Rank(0), what, suspects: vec![], after: SHORT });
        let text =
            "deadline of 400ms exceeded by rank 0: NCCL could not finish a sum; the cause is the device";
        assert_eq!(error.to_string(), text);
        assert_eq!(sum(&mut comm, 1).unwrap_err(), Error::Poisoned { cause: text.into() });
        assert!(matches!(comm.finalize(), Err(Error::Poisoned { .. })));
        Ok(())
    })
    .remove(0)
    .unwrap();
}

/// A rank's number in a child communicator, the child's size and the child's sum.
type Within = Option<(u32, u32, i32)>;

/// Splits five ranks by even and odd, in descending order, without the last rank. The parent is used further.
fn splits(seeded: &'static [u8]) -> Vec<Result<(Within, i32)>> {
    let machine = shim(5, seeded, StandIn::default());
    each(&machine, 5, Duration::from_secs(5), |mut comm| {
        let me = comm.rank().0 as i32;
        let child = comm.split(if me == 4 { -1 } else { me % 2 }, -me)?;
        let within = match child {
            Some(mut child) => Some((child.rank().0, child.size(), sum(&mut child, me)?)),
            None => None,
        };
        let all = sum(&mut comm, me)?;
        comm.finalize()?;
        Ok((within, all))
    })
}

#[test]
fn defect_3_a_split_waits_for_the_handle_that_comes_later() {
    let careless = splits(&[3]);
    // The test reads the state of a NULL handle and calls the parent while it is in progress: both give ncclInvalidArgument, 4. A rank
    // whose own calls are late enough waits for a rank that has ended with this error.
    let told = |result: &Result<_>| matches!(result, Err(Error::Nccl { code: 4, .. }));
    assert!(careless[..4].iter().any(told) && careless.iter().all(Result::is_err), "{careless:?}");
    let within = [Some((1, 2, 2)), Some((1, 2, 4)), Some((0, 2, 2)), Some((0, 2, 4)), None];
    let mended: Vec<_> = splits(&[]).into_iter().map(Result::unwrap).collect();
    assert_eq!(mended, within.map(|within| (within, 10)));
}

/// Rank 2 dies silently; the other ranks notice it by their deadline, and shrink.
fn shrinks(seeded: &'static [u8]) -> Vec<Result<Within>> {
    let machine = shim(4, seeded, StandIn { lost: PeerLoss::Silent, ..StandIn::default() });
    each(&machine, 4, Duration::from_secs(5), |mut comm| {
        let me = comm.rank().0 as i32;
        assert_eq!(sum(&mut comm, 1)?, 4);
        if me == 2 {
            die(comm);
            return Ok(None);
        }
        let data = comm.queue().upload(&[me]).unwrap();
        comm.all_reduce(DType::I32, ReduceOp::Sum, data.all(), data.all())?;
        let late = comm.wait("finish a sum").unwrap_err();
        assert!(
            matches!(&late, Error::NcclDeadline { suspects, .. } if suspects.contains(&Rank(2))),
            "{late}"
        );
        let mut left = comm.shrink(&[Rank(2)])?;
        Ok(Some((left.rank().0, left.size(), sum(&mut left, me)?)))
    })
}

#[test]
fn defect_3_the_ranks_that_are_left_shrink_after_they_noticed() {
    // Both runs wait for their deadlines.
    let (careless, mended) = std::thread::scope(|scope| {
        let careless = scope.spawn(|| shrinks(&[3]));
        let mended = shrinks(&[]);
        (careless.join().unwrap(), mended)
    });
    assert!(careless.iter().enumerate().all(|(rank, told)| rank == 2 || told.is_err()), "{careless:?}");
    let left: Vec<_> = mended.into_iter().map(Result::unwrap).collect();
    assert_eq!(left, [Some((0, 3, 4)), Some((1, 3, 4)), None, Some((2, 3, 4))]);
}

#[test]
fn an_abort_refuses_further_use_and_reaches_the_others() {
    let machine = shim(3, &[], StandIn::default());
    let told = each(&machine, 3, LONG, |mut comm| {
        sum(&mut comm, 1)?;
        if comm.rank() == Rank(1) {
            comm.abort("enough");
        }
        sum(&mut comm, 1)
    });
    let text = |rank: usize| told[rank].as_ref().unwrap_err().to_string();
    assert_eq!(text(1), "this communicator has failed before: aborted by rank 1: enough");
    for rank in [0, 2] {
        assert!(matches!(told[rank], Err(Error::Nccl { code: 6, .. })), "rank {rank}: {}", text(rank));
        assert!(text(rank).contains("a peer failed or left (ncclRemoteError)"), "{}", text(rank));
    }
}

/// Rank 0 issues a second sum and drops its communicator at once.
fn drops(seeded: &'static [u8]) -> Result<i32> {
    let machine = shim(2, seeded, StandIn::default());
    let sums = each(&machine, 2, Duration::from_secs(5), |mut comm| {
        assert_eq!(sum(&mut comm, 1)?, 2);
        let data = comm.queue().upload(&[1]).unwrap();
        if comm.rank() == Rank(1) {
            #[allow(clippy::disallowed_methods, reason = "rank 0 is to be first")]
            std::thread::sleep(Duration::from_millis(50));
        }
        comm.all_reduce(DType::I32, ReduceOp::Sum, data.all(), data.all())?;
        if comm.rank() == Rank(1) {
            let waited = comm.wait("finish a sum");
            comm.broken = waited.as_ref().err().map(Error::to_string);
            waited?;
        }
        let queue = comm.queue().clone();
        drop(comm);
        queue.download(data.all()).map(|sum| sum[0]).map_err(|error| Error::System(error.to_string()))
    });
    sums.into_iter().collect::<Result<Vec<i32>>>().map(|sums| sums[0])
}

#[test]
fn defect_21_a_healthy_communicator_is_dropped_in_good_order() {
    let careless = drops(&[21]);
    assert!(careless.clone().is_err() || careless == Ok(1), "{careless:?}");
    assert_eq!(drops(&[]), Ok(2));
}

#[test]
fn a_panic_aborts_so_that_the_others_are_told() {
    let machine = shim(2, &[], StandIn::default());
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        each(&machine, 2, LONG, |mut comm| {
            sum(&mut comm, 1)?;
            assert!(comm.rank() == Rank(0), "rank 1 panics");
            let told = sum(&mut comm, 1).unwrap_err();
            assert!(matches!(told, Error::Nccl { code: 6, .. }), "{told}");
            Ok(())
        })
    }));
    // `catch_unwind` may catch the panic of rank 1; if it does not, the result of each rank is checked.
    if let Ok(told) = told {
        assert!(told[0].is_ok() && told[1].is_err(), "{told:?}");
    }
}

#[test]
fn an_abort_waits_for_captured_graphs_and_returns_without_them() {
    let machine = shim(1, &[], StandIn::default());
    each(&machine, 1, Duration::from_millis(300), |mut comm| {
        sum(&mut comm, 1)?;
        let queue = comm.queue().clone();
        let data = queue.upload(&[1i32]).unwrap();
        let machine = queue.machine();
        machine.begin_capture(queue.stream()).unwrap();
        comm.all_reduce(DType::I32, ReduceOp::Sum, data.all(), data.all())?;
        let graph = machine.end_capture(queue.stream()).unwrap();
        // While the graph exists, the abort continues in the background.
        assert!(!comm.abandon(), "an abort ended while a graph held a collective");
        machine.forget(graph);
        assert!(comm.abandon());
        Ok(())
    })
    .remove(0)
    .unwrap();
}
