#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! Ranks die, and the survivors agree on the list of survivors and continue, whichever ranks die, at any operation, in any way.

use allfold_collectives::{Communicator, Error, Rank, ReduceOp, World};
use allfold_sim::Topology;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

/// How a rank dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Panic,
    Return,
    /// The rank ends while the others shrink: it gets the failure, and leaves instead of calling `shrink`.
    Shrinking,
}

/// For each rank that dies: the operation before which it dies, and how it dies.
type Deaths = BTreeMap<u32, (i64, Death)>;

const OPERATIONS: i64 = 10;

/// A rank's result: the groups that it was in, as lists of world ranks, and the size of the last group.
type Course = (Vec<Vec<u32>>, f32);

/// Runs all operations; after every failure continues with the survivors.
fn survive(first: Communicator, deaths: &Deaths) -> Result<Course, Error> {
    let me = first.rank().0;
    let (when, death) = deaths.get(&me).copied().unwrap_or((i64::MAX, Death::Return));
    let mut members: Vec<u32> = (0..first.size()).collect();
    let (mut course, mut comm, mut done) = (vec![members.clone()], first, 0i64);
    loop {
        let mut step = || -> Result<f32, Error> {
            // An operation may have succeeded on some ranks and failed on others: all continue after the latest operation that succeeded.
            let mut at = [done];
            comm.all_reduce(&mut at, ReduceOp::Max)?;
            done = at[0];
            while done < OPERATIONS {
                if done >= when && death != Death::Shrinking {
                    assert!(death != Death::Panic, "dies as planned");
                    return Err(Error::Argument("leaves as planned".into()));
                }
                let mut sum = [1.0f32; 33];
                match done % 3 {
                    0 => comm.all_reduce(&mut sum, ReduceOp::Sum)?,
                    1 => {
                        let work = comm.all_reduce_async(sum.to_vec().into(), ReduceOp::Sum)?;
                        sum.copy_from_slice(&work.wait()?);
                    }
                    _ => comm.barrier()?,
                }
                done += 1;
            }
            comm.barrier()?;
            Ok(comm.size() as f32)
        };
        match step() {
            Ok(sum) => return Ok((course, sum)),
            Err(Error::Argument(why)) => return Err(Error::Argument(why)),
            Err(_) if death == Death::Shrinking && done >= when => {
                return Err(Error::Argument("leaves while the others shrink".into()));
            }
            Err(_) => {
                let (smaller, left) = comm.shrink()?;
                assert_eq!(left[smaller.rank().index()], comm.rank());
                members = left.iter().map(|rank| members[rank.index()]).collect();
                course.push(members.clone());
                comm = smaller;
            }
        }
    }
}

fn worlds(ranks: u32) -> Vec<(&'static str, World)> {
    let topology = Topology::named("switch", ranks).unwrap();
    let deadline = Duration::from_secs(300);
    vec![
        ("threads", World::threads(ranks).deadline(deadline).any()),
        ("tcp", World::tcp(ranks).deadline(deadline).any()),
        ("hosts", World::tcp(ranks).ranks_per_host(2).deadline(deadline).any()),
        ("sim", World::sim(&topology).watchdog(Duration::from_secs(300)).any()),
    ]
}

/// The result of every rank. A hang fails the test, after ten minutes of real time.
fn courses(world: World, deaths: Deaths) -> Vec<Result<Course, Error>> {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(world.run_each(|comm| survive(comm, &deaths)).unwrap().ranks));
    wait.recv_timeout(Duration::from_secs(600)).expect("the ranks hang")
}

/// Checks that in every world all survivors were in the same groups, and that the last group has every rank that never dies.
fn agree(ranks: u32, deaths: &Deaths) {
    for (backend, world) in worlds(ranks) {
        let all = courses(world, deaths.clone());
        let alive: Vec<u32> = (0..ranks).filter(|rank| !deaths.contains_key(rank)).collect();
        let mut first: Option<&Course> = None;
        for rank in &alive {
            let course =
                all[*rank as usize].as_ref().unwrap_or_else(|e| panic!("{backend}, rank {rank}: {e}"));
            assert_eq!(course, *first.get_or_insert(course), "{backend}, rank {rank}, {deaths:?}");
        }
        let (memberships, size) = first.unwrap();
        let last = memberships.last().unwrap();
        // A rank that leaves after the last operation may still be a member.
        assert!(alive.iter().all(|rank| last.contains(rank)), "{backend}: {last:?}");
        assert_eq!(*size, last.len() as f32, "{backend}");
    }
}

fn deaths() -> impl Strategy<Value = (u32, Deaths)> {
    let death = prop_oneof![Just(Death::Panic), Just(Death::Return), Just(Death::Shrinking)];
    (2..=8u32).prop_flat_map(move |ranks| {
        let deaths =
            proptest::collection::btree_map(0..ranks, (0..OPERATIONS, death.clone()), 0..ranks as usize);
        (Just(ranks), deaths)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(40) })]

    #[test]
    fn survivors_agree_whoever_dies_and_when((ranks, deaths) in deaths()) {
        agree(ranks, &deaths);
    }
}

#[test]
fn each_rank_of_up_to_five_dies_at_each_operation() {
    for ranks in 2..=5 {
        for who in 0..ranks {
            for when in 0..OPERATIONS {
                agree(ranks, &BTreeMap::from([(who, (when, Death::Return))]));
            }
        }
    }
}

#[test]
fn one_rank_may_be_all_that_is_left() {
    agree(4, &[0, 1, 3].map(|rank| (rank, (i64::from(rank), Death::Panic))).into());
}

#[test]
fn a_rank_that_never_shrinks_is_excluded_at_its_deadline() {
    // This is also the deadline of the others' next operation, so it must suffice on a busy machine.
    let world = World::threads(3).deadline(Duration::from_secs(3));
    let (late, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let report = world
        .run_each(|comm| {
            if comm.rank() == Rank(1) {
                // This rank neither calls `shrink` nor leaves until the others have continued.
                let _ = wait.lock().unwrap().recv();
                return comm.shrink().map(|(_, left)| left);
            }
            let (smaller, left) = comm.shrink()?;
            smaller.barrier()?;
            if smaller.rank() == Rank(0) {
                late.send(()).unwrap();
            }
            Ok(left)
        })
        .unwrap();
    assert_eq!(report.ranks[0], Ok(vec![Rank(0), Rank(2)]));
    assert_eq!(report.ranks[2], Ok(vec![Rank(0), Rank(2)]));
    assert!(matches!(&report.ranks[1], Err(Error::Poisoned { cause }) if cause.contains("without rank 1")));
}

#[test]
fn a_healthy_group_may_shrink_too_and_a_smaller_one_again() {
    for (_, world) in worlds(4) {
        let sizes = world.run(|comm| {
            let (comm, left) = comm.shrink()?;
            assert_eq!(left.len(), 4);
            let half = comm.split(Some(comm.rank().0 % 2), 0)?.unwrap();
            let (half, _) = half.shrink()?;
            half.barrier()?;
            Ok::<_, Error>(half.size())
        });
        assert_eq!(sizes, Ok(vec![2; 4]));
    }
}
