#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
//! Groups that ranks make and drop: they leave no resources behind, and do not disturb ranks that still use them or their parent.

use allfold_collectives::registry::Algorithm;
use allfold_collectives::schedule::{Combine, Schedule, Span, Step};
use allfold_collectives::tcp::{Secret, Security};
use allfold_collectives::{Collective, Communicator, Error, Lost, Rank, ReduceOp, World};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The tests count the descriptors and mappings of the whole process, so they run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Worlds of three ranks: over plain sockets, over TLS, with shared memory between two ranks, with a shared segment of all, and
/// of threads.
fn worlds() -> Vec<(&'static str, World)> {
    let sealed = Security::Tls(Secret::new([3; 32]));
    let worlds = [
        ("sockets", World::tcp(3).any()),
        ("TLS", World::tcp(3).security(sealed).any()),
        ("pipes", World::tcp(3).ranks_per_host(2).any()),
        ("a segment", World::shm(3).any()),
        ("threads", World::threads(3).any()),
    ];
    worlds.into_iter().map(|(name, world)| (name, world.deadline(Duration::from_secs(60)))).collect()
}

/// Descriptors and mappings of this process.
fn held() -> [usize; 2] {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    [descriptors, std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()]
}

fn all(comm: &Communicator) -> Communicator {
    comm.split(Some(0), 0).unwrap().unwrap()
}

fn sum(comm: &Communicator, count: usize) -> Result<(), Error> {
    let mut data = vec![comm.rank().0 as f32; count];
    comm.all_reduce(&mut data, ReduceOp::Sum)?;
    let expected = (0..comm.size()).sum::<u32>() as f32;
    assert!(data.iter().all(|sum| *sum == expected), "a wrong sum");
    Ok(())
}

/// Uses a group and drops it: a collective, a message, and in some turns an operation that is in flight at the drop.
fn live(group: Communicator, turn: usize) -> Result<(), Error> {
    sum(&group, 1000)?;
    let (rank, size) = (group.rank().0 as i32, group.size() as i32);
    group.send(&[rank], Rank(((rank + 1) % size) as u32))?;
    let mut from = [0];
    let left = (rank + size - 1) % size;
    group.recv(&mut from, Rank(left as u32))?;
    assert_eq!(from, [left]);
    if turn.is_multiple_of(10) {
        let work = group.all_reduce_async(vec![1.0f32; 1000].into(), ReduceOp::Sum)?;
        drop(group);
        assert_eq!(work.wait()?[999], size as f32);
    }
    Ok(())
}

#[test]
fn a_rank_that_splits_again_and_again_holds_no_more_than_at_first() {
    let _alone = alone();
    for (name, world) in worlds() {
        let turns = if name == "sockets" { 2000 } else { 300 };
        let counts = world.run(|comm| {
            let mut first = [0; 2];
            for turn in 0..turns {
                live(all(&comm), turn)?;
                if turn == 9 {
                    comm.barrier()?;
                    first = held();
                }
            }
            // The ends of the last connections may still be in flight.
            comm.barrier()?;
            let late = Instant::now() + Duration::from_secs(10);
            let few = |last: [usize; 2]| last[0] <= first[0] + 8 && last[1] <= first[1] + 20;
            while !few(held()) && Instant::now() < late {
                std::thread::sleep(Duration::from_millis(10));
            }
            let last = held();
            comm.barrier()?;
            Ok::<_, Error>((few(last), first, last))
        });
        let counts = counts.unwrap();
        assert!(counts.iter().all(|(few, ..)| *few), "{name}: after ten, after {turns}: {counts:?}");
    }
}

#[test]
fn a_rank_that_leaves_a_waiting_group_is_named_and_the_parent_continues() {
    let _alone = alone();
    for (name, world) in worlds() {
        let errors = world.run(|comm| {
            let mut errors = Vec::new();
            for operations in 0..6 {
                let group = all(&comm);
                (0..operations).try_for_each(|_| sum(&group, 300_000))?;
                // A rank that is still in one of these sums would fail when another rank leaves the group.
                comm.barrier()?;
                // Each rank leaves the group in turn: before, after or while the other ranks begin the next sum.
                if comm.rank().0 == operations as u32 % 3 {
                    std::thread::sleep(Duration::from_millis(10 * (operations / 3)));
                    drop(group);
                } else {
                    errors.push((operations, sum(&group, 300_000).unwrap_err()));
                }
                sum(&comm, 1000)?;
            }
            Ok::<_, Error>(errors)
        });
        for (operations, error) in errors.unwrap().into_iter().flatten() {
            let who = Rank(operations as u32 % 3);
            // Setting up the segment took two operations.
            let operations = operations + if name == "a segment" { 2 } else { 0 };
            let returned = Lost::ReturnedEarly { operations };
            assert!(
                matches!(&error, Error::PeerLost { rank, cause, .. } if *rank == who && *cause == returned),
                "{name}: after {operations}: {error}"
            );
        }
    }
}

#[test]
fn groups_that_some_ranks_keep_and_others_drop_harm_nobody() {
    let _alone = alone();
    for (name, world) in worlds() {
        world
            .run(|comm| {
                let mut kept = Vec::new();
                for turn in 0..40 {
                    let group = all(&comm);
                    sum(&group, 100)?;
                    if comm.rank() != Rank(turn % 2) {
                        kept.push(group);
                    }
                }
                // A rank that is still in the last of these sums would fail when another rank leaves its group.
                comm.barrier()?;
                // Frames about these groups now concern groups that other ranks have left long ago.
                for group in kept.drain(..) {
                    sum(&group, 100).unwrap_err();
                }
                comm.barrier()?;
                (0..40).try_for_each(|turn| live(all(&comm), turn))
            })
            .unwrap_or_else(|error: Error| panic!("{name}: {error}"));
    }
}

#[test]
fn messages_of_a_group_arrive_after_their_sender_has_dropped_it() {
    let _alone = alone();
    for (name, world) in worlds() {
        // More bytes than a receiving socket holds, or fewer than a pipe holds; and a message in the other direction that is never read.
        let count = if name == "pipes" { 100 << 10 } else { 600 << 10 };
        world
            .run(|comm| {
                let group = all(&comm);
                let mut message = vec![comm.rank().0 as u8 + 7; count];
                match comm.rank() {
                    Rank(0) => group.send(&message, Rank(1))?,
                    Rank(1) => group.send(&message[..1000], Rank(0))?,
                    _ => {}
                }
                comm.barrier()?;
                if comm.rank() != Rank(1) {
                    drop(group);
                    comm.barrier()?;
                } else {
                    comm.barrier()?;
                    std::thread::sleep(Duration::from_millis(100));
                    group.recv(&mut message, Rank(0))?;
                    assert!(message.iter().all(|byte| *byte == 7));
                }
                comm.barrier()
            })
            .unwrap_or_else(|error: Error| panic!("{name}: {error}"));
    }
}

/// Ranks that send in a circle, in which the last rank sends to a rank that does not exist. It has so many chunks that it runs without a
/// proof, which would refuse it.
struct Beyond(u32);

const CHUNKS: u32 = 1 << 18;

impl Schedule for Beyond {
    fn ranks(&self) -> u32 {
        self.0
    }
    fn chunks(&self) -> u32 {
        CHUNKS
    }
    fn rounds(&self) -> u64 {
        1
    }
    fn step(&self, rank: Rank, _round: u64) -> Step {
        let all = Span::data(0, CHUNKS);
        let before = Rank((rank.0 + self.0 - 1) % self.0);
        Step { send: Some((Rank(rank.0 + 1), all)), recv: Some((before, all, Combine::Reduce)) }
    }
}

/// Regression: a rank that panicked within a collective counted as a rank that would finish it, and the others waited for their deadline.
#[test]
fn a_panic_within_a_collective_fails_the_waiting_ranks() {
    static BEYOND: Algorithm =
        Algorithm::new(Collective::AllReduce, "beyond", "", |shape| Arc::new(Beyond(shape.ranks())));
    let world = World::threads(4).deadline(Duration::from_secs(300)).with(&BEYOND);
    let report = world.run_each(|comm: Communicator| comm.all_reduce(&mut [1.0f32; 8], ReduceOp::Sum));
    let mut ranks = report.unwrap().ranks;
    // Ranks 1 and 2 may have what they need from each other and from rank 0.
    for waiting in [3, 0] {
        let error = ranks.swap_remove(waiting).unwrap_err();
        assert!(matches!(&error, Error::PeerLost { rank: Rank(3), cause: Lost::Panicked(_), .. }), "{error}");
    }
}
