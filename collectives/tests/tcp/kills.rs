//! Cases 2 and 3: all connections of a rank end before its nth data frame, for every n, for every rank of 2 to 5, for algorithms of every
//! shape. A rank that needed the dead rank gets an error with its number; every other rank has the right result.

use super::arena::{deadlines, run};
use allfold_collectives::tcp::{Passing, ProxyAction};
use allfold_collectives::{Collective, Communicator, Error, Rank, ReduceOp};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

type Algorithm = (Collective, &'static str);

/// Algorithms of every shape.
const ALGORITHMS: [Algorithm; 7] = [
    (Collective::AllReduce, "ring"),
    (Collective::AllReduce, "recursive_doubling"),
    (Collective::AllReduce, "halving_doubling"),
    (Collective::AllReduce, "double_binary_tree"),
    (Collective::AllReduce, "star"),
    (Collective::AllGather, "bruck"),
    (Collective::Broadcast, "binomial"),
];

fn calls(comm: &Communicator, (collective, name): Algorithm, count: usize) -> Result<(), Error> {
    let plan = comm.plan().algorithm(collective, name)?;
    let Some(comm) = comm.split(Some(0), 0)? else { return Ok(()) };
    let comm = comm.with_plan(plan);
    let n = comm.size();
    for _ in 0..2 {
        let mut data = vec![comm.rank().0 as f32 + 1.0; count];
        let all_are = |data: &[f32], what: u32| data.iter().all(|x| *x == what as f32);
        let right = match collective {
            Collective::AllReduce => {
                comm.all_reduce(&mut data, ReduceOp::Sum)?;
                all_are(&data, n * (n + 1) / 2)
            }
            Collective::AllGather => {
                let mut all = vec![0.0; n as usize * count];
                comm.all_gather(&data, &mut all)?;
                (1..).zip(all.chunks(count)).all(|(what, block)| all_are(block, what))
            }
            Collective::Broadcast => {
                comm.broadcast(&mut data, Rank(0))?;
                all_are(&data, 1)
            }
            other => panic!("no call of {other}"),
        };
        assert!(right, "a wrong result");
    }
    comm.barrier()
}

/// A run in which rank `who` dies at its data frame number `nth`. Returns whether it died: false if it sends fewer frames.
fn kill_at(ranks: u32, algorithm: Algorithm, who: u32, nth: u32) -> bool {
    let sent = Arc::new(AtomicU32::new(0));
    let count = sent.clone();
    let decision = move |frame: &Passing| {
        let its = frame.is_data && frame.from == Rank(who);
        if its && count.fetch_add(1, Ordering::Relaxed) >= nth {
            ProxyAction::Kill
        } else {
            ProxyAction::Pass
        }
    };
    let results = run(ranks, Arc::new(decision), deadlines(), move |comm| calls(comm, algorithm, 1000));
    let killed = sent.load(Ordering::Relaxed) > nth;
    for (rank, result) in (0..).zip(&results) {
        let named = match result {
            Ok(()) => true,
            // The killed rank is cut off, so it reports another rank as lost.
            Err(Error::PeerLost { rank: lost, .. }) => *lost == Rank(who) || rank == who,
            Err(_) => false,
        };
        assert!(
            named,
            "{algorithm:?} of {ranks}, rank {who} killed at frame {nth}: rank {rank} has {result:?}"
        );
    }
    if killed {
        let survivors = (0..).zip(&results).filter(|(rank, _)| *rank != who);
        let told = survivors.filter(|(_, result)| result.is_err()).count();
        assert!(told > 0, "{algorithm:?} of {ranks}, rank {who} killed at frame {nth}: nobody noticed");
    } else {
        assert!(results.iter().all(Result::is_ok), "{algorithm:?} of {ranks}: {results:?}");
    }
    killed
}

#[test]
fn case_2_a_rank_killed_in_any_round_is_named_by_all_who_need_it() {
    let each_frame_of = |ranks| {
        for algorithm in ALGORITHMS {
            for who in 0..ranks {
                let rounds = (0..).take_while(|nth| kill_at(ranks, algorithm, who, *nth)).count();
                assert!(rounds >= 2, "{algorithm:?} of {ranks}: rank {who} sends {rounds} frames");
            }
        }
    };
    // Most of the time is waiting, so the numbers of ranks wait at the same time.
    thread::scope(|scope| {
        (2..=5).for_each(|ranks| drop(scope.spawn(move || each_frame_of(ranks))));
    });
}
