//! Ranks that panic, return, abort or drop their work: the other ranks get an error that names the rank.

use super::worlds::{Body, before, disagree, outcome, sum, worlds};
use allfold_collectives::{Communicator, Error, Lost, Rank, ReduceOp};
use std::time::Duration;

#[test]
fn a_rank_that_panics_while_others_wait_for_work() {
    for ranks in [2, 5] {
        for (backend, world) in worlds(ranks, Duration::from_secs(60)) {
            let results = outcome(world, |comm| {
                let half = comm.split(Some(0), 0)?.expect("every rank names a colour");
                let first = half.all_reduce_async(vec![1f32; 1000].into(), ReduceOp::Sum)?;
                if comm.rank() == Rank(1) {
                    panic!("with work under way");
                }
                let second = half.all_reduce_async(vec![1f32; 1000].into(), ReduceOp::Sum)?;
                let third = half.broadcast_async(vec![1f32; 1000].into(), Rank(0))?;
                // Operations that were issued before the panic are complete.
                assert_eq!(first.wait()?[0], comm.size() as f32);
                let told = second.wait().unwrap_err();
                third.wait().unwrap_err();
                Err(told)
            });
            for result in results {
                let named = matches!(&result, Err(Error::PeerLost { rank: Rank(1), cause: Lost::Panicked(why), .. })
                    if why == "with work under way");
                assert!(named, "{backend}, {ranks} ranks: {result:?}");
            }
        }
    }
}

/// An operation that its rank does not wait for still completes, even if its communicator is dropped first, so that the peers
/// get their results.

#[test]
fn work_that_is_dropped_with_its_communicator_is_done_for_the_others() {
    for ranks in [1, 2, 5] {
        for (backend, world) in worlds(ranks, Duration::from_secs(60)) {
            let results = outcome(world, |comm| {
                let last = comm.size() - 1;
                let sums: Result<Vec<_>, Error> = [10, 0, 3000, 1]
                    .map(|len| comm.all_reduce_async(vec![1f32; len].into(), ReduceOp::Sum))
                    .into_iter()
                    .collect();
                let sums = sums?;
                if comm.rank() == Rank(last) {
                    drop(comm);
                    drop(sums);
                    return Ok(());
                }
                let size = comm.size() as f32;
                sums.into_iter()
                    .try_for_each(|work| work.wait().map(|sum| assert!(sum.iter().all(|x| *x == size))))
            });
            assert!(results.iter().all(Result::is_ok), "{backend}, {ranks} ranks: {results:?}");
        }
    }
}

#[test]
fn work_may_be_waited_for_after_its_communicator_is_gone() {
    for (backend, world) in worlds(3, Duration::from_secs(60)) {
        let results = outcome(world, |comm| {
            let work = comm.all_reduce_async(vec![1f32; 100].into(), ReduceOp::Sum)?;
            drop(comm);
            work.wait().map(|sum| assert_eq!(sum[99], 3.0))
        });
        assert!(results.iter().all(Result::is_ok), "{backend}: {results:?}");
    }
}

#[test]
fn a_rank_that_panics() {
    let odd: Body = |comm| sum(comm, 4).map(|()| panic!("out of paper"));
    disagree(
        2,
        |comm| (0..3).try_for_each(|_| sum(comm, 4)),
        odd,
        |backend, errors| {
            for error in errors {
                let Error::PeerLost { rank: Rank(2), cause: Lost::Panicked(why), .. } = error else {
                    panic!("{backend}: {error}");
                };
                assert_eq!(why, "out of paper");
            }
        },
    );
}

#[test]
fn a_rank_that_panics_after_any_number_of_operations_is_named_by_all_that_go_on() {
    const OPERATIONS: usize = 4;
    for ranks in 2..=5 {
        for after in 0..OPERATIONS {
            for (backend, world) in worlds(ranks, Duration::from_secs(60)) {
                let who = Rank(after as u32 % ranks);
                let results = outcome(world, move |comm| {
                    let issue = || comm.all_reduce_async(vec![1f32; 100].into(), ReduceOp::Sum);
                    let work = issue()?;
                    for done in 0..OPERATIONS {
                        assert!(comm.rank() != who || done < after, "gone");
                        sum(&comm, 1000)?;
                    }
                    work.wait().map(drop)
                });
                for result in results {
                    let named = matches!(&result, Err(Error::PeerLost { rank, cause: Lost::Panicked(why), .. })
                        if *rank == who && why == "gone");
                    assert!(named, "{backend}, {ranks} ranks, after {after}: {result:?}");
                }
            }
        }
    }
}

#[test]
fn a_rank_that_returns_early() {
    for (backend, world) in worlds(4, Duration::from_secs(60)) {
        let ranks = outcome(world, |comm| {
            sum(&comm, 4)?;
            if comm.rank() == Rank(1) { Ok(()) } else { (0..3).try_for_each(|_| sum(&comm, 4)) }
        });
        let lost = |error: &Error| {
            matches!(
                error,
                Error::PeerLost { rank: Rank(1), cause: Lost::ReturnedEarly { operations }, .. } if *operations == before(backend) + 1
            )
        };
        for (rank, result) in ranks.iter().enumerate() {
            assert_eq!(rank == 1, result.is_ok(), "{backend}, rank {rank}: {result:?}");
            assert!(
                result.as_ref().is_ok_and(|()| true) || result.as_ref().is_err_and(lost),
                "{backend}: {result:?}"
            );
        }
    }
}

#[test]
fn a_rank_that_returns_its_own_error_is_the_one_that_run_reports() {
    for (backend, world) in worlds(3, Duration::from_secs(60)) {
        let result: Result<Vec<()>, Error> = world.run(|comm: Communicator| match comm.rank() {
            Rank(2) => Err(Error::Argument("no such file".into())),
            _ => sum(&comm, 4),
        });
        assert_eq!(result, Err(Error::Argument("no such file".into())), "{backend}");
    }
}

#[test]
fn a_message_to_or_from_a_rank_that_has_left() {
    for (backend, world) in worlds(2, Duration::from_secs(60)) {
        let ranks = outcome(world, |comm| match comm.rank() {
            Rank(0) => comm.recv(&mut [0u8; 3], Rank(1)),
            _ => Ok(()),
        });
        assert!(matches!(ranks[0], Err(Error::PeerLost { rank: Rank(1), .. })), "{backend}: {:?}", ranks[0]);
    }
}

#[test]
fn an_abort_reaches_everyone() {
    let odd: Body = |comm| {
        comm.abort("the disk is full");
        sum(comm, 4)
    };
    disagree(
        1,
        |comm| (0..2).try_for_each(|_| sum(comm, 4)),
        odd,
        |backend, errors| {
            for error in errors {
                assert_eq!(error.to_string(), "aborted by rank 1: the disk is full", "{backend}");
            }
        },
    );
}

#[test]
fn after_an_error_the_communicator_is_poisoned_and_says_why() {
    for (backend, world) in worlds(3, Duration::from_secs(60)) {
        let ranks = outcome(world, |comm| {
            let first = sum(&comm, 4 + (comm.rank() == Rank(1)) as usize).unwrap_err();
            let Err(Error::Poisoned { cause }) = comm.barrier() else { panic!("not poisoned") };
            assert_eq!(cause, first.to_string());
            Err(first)
        });
        assert!(ranks.iter().all(|r| matches!(r, Err(Error::Mismatch { .. }))), "{backend}: {ranks:?}");
    }
}
