#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! An error, and not a hang, for everything that ranks can do wrong, on every backend; and the error names it.

use allfold_collectives::{Collective, Communicator, Error, Lost, Rank, ReduceOp, World};
use allfold_sim::{Costs, Faults, Picos, Topology, Work};
use std::sync::mpsc;
use std::time::Duration;

/// What a rank does.
type Body = fn(&Communicator) -> Result<(), Error>;

/// All backends for `ranks` ranks, with a deadline that no test should need unless it says so.
fn worlds(ranks: u32, deadline: Duration) -> [(&'static str, World); 6] {
    let topology = Topology::named("switch", ranks).unwrap();
    [
        ("threads", World::threads(ranks).deadline(deadline).any()),
        ("tcp", World::tcp(ranks).deadline(deadline).any()),
        ("shm", World::shm(ranks).deadline(deadline).any()),
        ("tcp, hosts of 2", World::tcp(ranks).ranks_per_host(2).deadline(deadline).any()),
        ("threads by messages", World::threads(ranks).deadline(deadline).messages().any()),
        ("sim", World::sim(&topology).deadline(deadline).watchdog(Duration::from_secs(10)).any()),
    ]
}

/// Operations before a body's own: processes that share memory agree on it by two.
fn before(backend: &str) -> u64 {
    if backend == "shm" { 2 } else { 0 }
}

/// What every rank comes to. A hang fails the test, by real time.
fn outcome(
    world: impl Into<World>,
    body: impl Fn(Communicator) -> Result<(), Error> + Send + Sync + 'static,
) -> Vec<Result<(), Error>> {
    let ((done, wait), world) = (mpsc::channel(), world.into());
    std::thread::spawn(move || done.send(world.run_each(body).unwrap().ranks));
    wait.recv_timeout(Duration::from_secs(20)).expect("the ranks hang")
}

/// Runs `odd` on rank `who` and `even` on the others, on both backends; then a barrier, in which those are told whose
/// own part was done before the others called.
fn disagree(who: u32, even: Body, odd: Body, check: impl Fn(&str, &[Error])) {
    const RANKS: u32 = 4;
    for (name, world) in worlds(RANKS, Duration::from_secs(60)) {
        let ranks = outcome(world, move |comm| {
            let call = if comm.rank() == Rank(who) { odd } else { even };
            call(&comm)?;
            comm.barrier()
        });
        let errors: Vec<Error> = ranks
            .into_iter()
            .enumerate()
            .map(|(rank, result)| match result {
                Err(error) => error,
                Ok(()) => panic!("{name}: rank {rank} was not told"),
            })
            .collect();
        check(name, &errors);
    }
}

/// Every rank is told of both calls.
fn mismatch(who: u32, even: Body, odd: Body, says: [&str; 2]) {
    disagree(who, even, odd, |backend, errors| {
        for error in errors {
            assert!(matches!(error, Error::Mismatch { .. }), "{backend}: {error}");
            let text = error.to_string();
            says.iter()
                .for_each(|call| assert!(text.contains(call), "{backend}: `{call}` is not in: {text}"));
            assert!(text.contains(&format!("rank {who} called")), "{backend}: {text}");
        }
    });
}

fn sum(comm: &Communicator, count: usize) -> Result<(), Error> {
    comm.all_reduce(&mut vec![1f32; count], ReduceOp::Sum)
}

#[test]
fn another_count() {
    mismatch(2, |comm| sum(comm, 10), |comm| sum(comm, 11), ["10 x f32", "11 x f32"]);
}

#[test]
fn a_count_of_nothing() {
    mismatch(0, |comm| sum(comm, 10), |comm| sum(comm, 0), ["10 x f32", "0 x f32"]);
}

#[test]
fn another_type() {
    let odd: Body = |comm| comm.all_reduce(&mut [1i32; 10], ReduceOp::Sum);
    mismatch(1, |comm| sum(comm, 10), odd, ["10 x f32", "10 x i32"]);
}

#[test]
fn another_operator() {
    let odd: Body = |comm| comm.all_reduce(&mut [1f32; 10], ReduceOp::Max);
    mismatch(3, |comm| sum(comm, 10), odd, ["sum", "max"]);
}

#[test]
fn another_root() {
    let even: Body = |comm| comm.broadcast(&mut [1f32; 10], Rank(1));
    let odd: Body = |comm| comm.broadcast(&mut [1f32; 10], Rank(2));
    mismatch(0, even, odd, ["root 1", "root 2"]);
}

#[test]
fn another_algorithm() {
    fn ring(comm: &Communicator) -> Result<(), Error> {
        let other = comm.split(Some(0), 0)?.expect("every rank names a colour");
        let other = match comm.rank() {
            Rank(1) => other.with_algorithm(Collective::AllReduce, "ring")?,
            _ => other,
        };
        other.all_reduce(&mut [1f32; 10], ReduceOp::Sum)
    }
    mismatch(1, ring, ring, ["recursive_doubling", "ring"]);
}

#[test]
fn another_collective() {
    // Two ranks of a broadcast that are no root only receive, so frames alone would never show this.
    let even: Body = |comm| comm.broadcast(&mut [1u8; 4], Rank(3));
    mismatch(3, even, |comm| comm.barrier(), ["broadcast(4 x u8, root 3", "barrier"]);
    mismatch(0, |comm| sum(comm, 3), |comm| comm.split(None, 0).map(drop), ["all_reduce", "split"]);
}

#[test]
fn another_order() {
    let even: Body = |comm| sum(comm, 5).and_then(|()| comm.barrier());
    let odd: Body = |comm| comm.barrier().and_then(|()| sum(comm, 5));
    disagree(2, even, odd, |backend, errors| {
        let place = format!("as operation {}", before(backend));
        for error in errors {
            assert!(matches!(error, Error::Mismatch { .. }), "{backend}: {error}");
            let text = error.to_string();
            assert!(text.matches(&place).count() == 2 && text.contains("barrier"), "{backend}: {text}");
            assert!(text.contains("rank 2 called"), "{backend}: {text}");
        }
    });
}

#[test]
fn another_order_later_and_asynchronously() {
    fn ask(comm: &Communicator, lens: [usize; 4]) -> Result<(), Error> {
        let issue = |len| comm.all_reduce_async(vec![1f64; len].into(), ReduceOp::Sum);
        let works: Result<Vec<_>, Error> = lens.into_iter().map(issue).collect();
        works?.into_iter().try_for_each(|work| work.wait().map(drop))
    }
    mismatch(1, |comm| ask(comm, [9, 8, 7, 6]), |comm| ask(comm, [9, 8, 6, 7]), ["7 x f64", "6 x f64"]);
}

#[test]
fn a_message_of_another_size() {
    let even: Body = |comm| match comm.rank() {
        Rank(0) => comm.send(&[1u8; 5], Rank(1)).and_then(|()| comm.barrier()),
        _ => comm.barrier(),
    };
    let odd: Body = |comm| comm.recv(&mut [0u8; 6], Rank(0)).and_then(|()| comm.barrier());
    disagree(1, even, odd, |backend, errors| {
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("5 x u8") && text.contains("6 x u8"), "{backend}: {text}");
        }
    });
}

#[test]
fn a_message_of_another_type() {
    // As many bytes of another type: only the calls tell.
    let even: Body = |comm| match comm.rank() {
        Rank(0) => comm.send(&[1i32; 5], Rank(1)).and_then(|()| comm.barrier()),
        _ => comm.barrier(),
    };
    let odd: Body = |comm| comm.recv(&mut [0f32; 5], Rank(0)).and_then(|()| comm.barrier());
    disagree(1, even, odd, |backend, errors| {
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("5 x i32") && text.contains("5 x f32"), "{backend}: {text}");
        }
    });
}

/// A mismatch in a smaller communicator fails that one; the one it was split from, and its sibling, go on.
#[test]
fn a_mismatch_in_a_split_stays_there_and_counts_its_ranks() {
    for (backend, world) in worlds(6, Duration::from_secs(60)) {
        let ranks = outcome(world, move |comm| {
            let half = comm.split(Some(comm.rank().0 % 2), 0)?.expect("every rank names a colour");
            let odd = comm.rank() == Rank(5);
            let work = half.all_reduce_async(vec![1f32; 8 + usize::from(odd)].into(), ReduceOp::Sum)?;
            let result = work.wait();
            if comm.rank().0.is_multiple_of(2) {
                assert_eq!(result.unwrap()[0], 3.0, "{backend}");
            } else {
                let error = result.unwrap_err();
                assert!(matches!(error, Error::Mismatch { .. }), "{backend}: {error}");
                let text = error.to_string();
                assert!(text.contains("rank 2 called all_reduce(9 x f32"), "{backend}: {text}");
                assert!(matches!(half.barrier(), Err(Error::Poisoned { .. })), "{backend}");
            }
            comm.barrier()
        });
        assert!(ranks.iter().all(Result::is_ok), "{backend}: {ranks:?}");
    }
}

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
                // What was issued before the panic is done.
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

/// Work that nobody waits for is still done, also where its communicator is dropped first, so the peers get theirs.
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
fn one_rank_alone_has_no_one_to_disagree_with() {
    for (backend, world) in worlds(1, Duration::from_secs(60)) {
        let results = outcome(world, |comm| {
            sum(&comm, 3)?;
            comm.broadcast(&mut [1u8; 2], Rank(0))?;
            let alone = comm.split(Some(9), 1)?.expect("it names a colour");
            alone.all_reduce_async(vec![2f32; 4].into(), ReduceOp::Avg)?.wait().map(drop)?;
            assert!(matches!(comm.send(&[1u8], Rank(0)), Err(Error::Argument(_))));
            comm.abort("enough");
            comm.barrier()
        });
        let text = results[0].as_ref().unwrap_err().to_string();
        assert_eq!(text, "aborted by rank 0: enough", "{backend}");
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
fn a_letter_to_or_from_a_rank_that_has_left() {
    for (backend, world) in worlds(2, Duration::from_secs(60)) {
        let ranks = outcome(world, |comm| match comm.rank() {
            Rank(0) => comm.recv(&mut [0u8; 3], Rank(1)),
            _ => Ok(()),
        });
        assert!(matches!(ranks[0], Err(Error::PeerLost { rank: Rank(1), .. })), "{backend}: {:?}", ranks[0]);
    }
}

#[test]
fn a_rank_that_skips_a_call_is_named_at_the_deadline() {
    // Rank 3 computes for an hour while the others have called; on real time, until they have given up.
    for (backend, world) in worlds(4, Duration::from_millis(500)) {
        let (tell, told) = mpsc::channel();
        let (told, others) = (std::sync::Mutex::new(told), if backend == "sim" { 0 } else { 3 });
        let ranks = outcome(world, move |comm| {
            if comm.rank() == Rank(3) {
                comm.charge(&Work { flops: 1 << 60, ..Work::default() });
                let told = told.lock().unwrap();
                (0..others).for_each(|_| told.recv().unwrap());
                // All others have come to this one: where word of their failure takes longer, it is told in the next.
                return comm.barrier().and_then(|()| comm.barrier());
            }
            let result = comm.barrier();
            tell.send(()).unwrap();
            result
        });
        for result in ranks {
            let Err(Error::DeadlineExceeded { waiting_on, entered: false, call, .. }) = &result else {
                panic!("{backend}: {result:?}");
            };
            assert_eq!(
                (&waiting_on[..], call.to_string().split('(').next()),
                (&[Rank(3)][..], Some("barrier"))
            );
        }
    }
}

#[test]
fn ranks_that_wait_for_each_other_for_ever() {
    for (backend, world) in worlds(2, Duration::from_millis(300)) {
        let ranks = outcome(world, |comm| {
            let peer = Rank(1 - comm.rank().0);
            comm.recv(&mut [0u8; 1], peer)
        });
        for result in ranks {
            let error = result.unwrap_err();
            match &error {
                Error::Deadlock { waits } if backend == "sim" => assert_eq!(waits.len(), 2, "{error}"),
                Error::DeadlineExceeded { .. } if backend != "sim" => {}
                _ => panic!("{backend}: {error}"),
            }
        }
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

#[test]
fn a_wrong_argument_is_told_to_its_caller_and_harms_no_one() {
    for (backend, world) in worlds(3, Duration::from_secs(60)) {
        let ranks = outcome(world, |comm| {
            let mut small = [0f32; 4];
            let wrong = [
                (comm.all_gather(&[1f32; 4], &mut small), "4 elements where 12 are needed"),
                (
                    comm.reduce_scatter(&[1f32; 9], &mut small, ReduceOp::Sum),
                    "9 elements where 12 are needed",
                ),
                (comm.broadcast(&mut small, Rank(3)), "root 3 is outside the group: its ranks are 0 to 2"),
                (comm.all_to_all(&[1f32; 4], &mut small), "4 elements do not divide among 3 ranks"),
                (comm.send(&small, Rank(9)), "rank 9 is outside the group"),
                (comm.send(&small, comm.rank()), "cannot send to itself"),
                (
                    comm.all_reduce_into(&[1f32; 3], &mut small, ReduceOp::Sum),
                    "4 elements where 3 are needed",
                ),
            ];
            for (result, says) in wrong {
                let error = result.unwrap_err();
                assert!(matches!(error, Error::Argument(_)) && error.to_string().contains(says), "{error}");
            }
            sum(&comm, 4)
        });
        assert!(ranks.iter().all(Result::is_ok), "{backend}: {ranks:?}");
    }
}

#[test]
fn a_world_that_cannot_be_is_refused() {
    fn run(world: impl Into<World>) -> String {
        world.into().run(|_| -> Result<(), Error> { Ok(()) }).unwrap_err().to_string()
    }
    assert_eq!(run(World::threads(0)), "a world of 0 ranks; it takes 1 or more");
    let unknown = run(World::threads(2).algorithm(Collective::AllReduce, "rink"));
    assert!(unknown.contains("`rink`") && unknown.contains("did you mean `ring`"), "{unknown}");
    assert!(run(World::threads(2).segment(0)).contains("0 bytes"));
    assert!(run(World::threads(2).window(0)).contains("0 steps"));
    assert!(run(World::tcp(2).ranks_per_host(0)).contains("host of 0 ranks"));
}

#[test]
fn virtual_time_that_runs_out_is_an_error_and_no_panic() {
    let topology = Topology::named("switch", 3).unwrap();
    let world = World::sim(&topology).algorithm(Collective::AllReduce, "ring");
    let far = Costs { overhead: Picos(u64::MAX / 2), launch: Picos(u64::MAX / 2), ..Costs::default() };
    let faults = |rule: &str| Faults::parse([rule], &topology).unwrap();
    let worlds = [
        world.clone().costs(far),
        world.clone().faults(faults("slow_rank=0:x18000000000000")),
        world.clone().faults(faults("slow_link=up[0]:x18000000000000")),
        world.clone().faults(faults("slow_link=down[1]:+18000000000ms")),
    ];
    for (nth, world) in worlds.into_iter().enumerate() {
        let ranks = outcome(world, |comm| (0..3).try_for_each(|_| sum(&comm, 40_000_000 / 4)));
        for result in &ranks {
            assert!(
                matches!(result, Err(Error::Endless | Error::Poisoned { .. })),
                "world {nth}: {result:?}"
            );
        }
    }
}

#[test]
fn a_rank_that_blocks_elsewhere_on_virtual_time_is_named() {
    let topology = Topology::named("switch", 2).unwrap();
    let world = World::sim(&topology).watchdog(Duration::from_millis(100));
    let (hold, held) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let ranks = outcome(world, move |comm| {
        if comm.rank() == Rank(1) {
            let _ = held.lock().unwrap().recv_timeout(Duration::from_millis(500));
        }
        comm.barrier()
    });
    drop(hold);
    for result in ranks {
        assert!(
            matches!(&result, Err(Error::Unresponsive { waiting_on, .. }) if waiting_on == &[Rank(1)]),
            "{result:?}"
        );
    }
}

/// What one rank does wrong.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    Count,
    Type,
    Operator,
    Root,
    Order,
    Panics,
    Returns,
    Aborts,
}

/// Three sums that are checked, of which rank `who` spoils the one after `at`; then a barrier, in which those are told
/// whose own part was done.
fn spoiled(comm: &Communicator, who: u32, at: u32, wrong: Wrong) -> Result<(), Error> {
    for turn in 0..4 {
        let odd = comm.rank() == Rank(who) && turn == at;
        let mut x = vec![1f32; if matches!(wrong, Wrong::Count) && odd { 99 } else { 100 }];
        match wrong {
            Wrong::Type if odd => comm.all_reduce(&mut [1i32; 100], ReduceOp::Sum)?,
            Wrong::Operator if odd => comm.all_reduce(&mut x, ReduceOp::Max)?,
            Wrong::Root if turn == at => comm.broadcast(&mut x, Rank(u32::from(odd)))?,
            Wrong::Order if odd => comm.barrier()?,
            Wrong::Panics if odd => panic!("out of paper"),
            Wrong::Returns if odd => return Ok(()),
            Wrong::Aborts if odd => comm.abort("out of paper"),
            _ => {
                comm.all_reduce(&mut x, ReduceOp::Sum)?;
                if x.iter().any(|sum| *sum != 3.0) {
                    return Err(Error::System("a wrong result".into()));
                }
            }
        }
    }
    comm.barrier()
}

#[test]
fn the_readme_says_how_many_faults_were_injected_and_what_came_of_them() {
    use Wrong::{Aborts, Count, Operator, Order, Panics, Returns, Root, Type};
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    for backend in 0..4 {
        let (mut injected, mut wrongs, mut unnamed, mut name) = (0, 0, Vec::new(), "");
        for wrong in [Count, Type, Operator, Root, Order, Panics, Returns, Aborts] {
            for (who, at) in (0..3).flat_map(|who| (0..4).map(move |at| (who, at))) {
                let (backend, world) = worlds(3, Duration::from_secs(60)).into_iter().nth(backend).unwrap();
                // A hang fails the test where it happens.
                let ranks = outcome(world, move |comm| spoiled(&comm, who, at, wrong));
                (name, injected) = (backend, injected + 1);
                for (rank, result) in (0..).zip(ranks) {
                    let gone = rank == who && matches!(wrong, Panics | Returns);
                    wrongs += u32::from(matches!(&result, Err(Error::System(_))));
                    let named = match (&result, wrong) {
                        _ if gone => true,
                        (Err(Error::PeerLost { rank, .. }), Panics | Returns) => rank.0 == who,
                        (Err(Error::Aborted { by, .. }), Aborts) => by.0 == who,
                        (Err(Error::Mismatch { rank, peer, .. }), _) => rank.0 == who || peer.0 == who,
                        _ => false,
                    };
                    if !named {
                        unnamed
                            .push(format!("{wrong:?} by rank {who} after {at}: rank {rank} had {result:?}"));
                    }
                }
            }
        }
        let row = format!("| `{name}` | {injected} | 0 | {wrongs} | {} |", unnamed.len());
        println!("{row}");
        assert!(wrongs == 0 && unnamed.is_empty(), "{row}\n{}", unnamed.join("\n"));
        assert!(readme.contains(&row), "the README does not say: {row}");
    }
}
