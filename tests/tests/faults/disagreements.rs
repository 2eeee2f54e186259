//! Ranks that make different calls at the same position: every rank gets an error that names a rank that differs.

use super::worlds::{Body, before, disagree, mismatch, outcome, sum, worlds};
use allfold_collectives::{Collective, Communicator, Error, Plan, Rank, ReduceOp};
use std::time::Duration;

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
            Rank(1) => other.with_plan(Plan::default().algorithm(Collective::AllReduce, "ring")?),
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
    // The other type has as many bytes: only the comparison of calls finds the disagreement.
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

/// A mismatch in a split communicator fails that communicator; its parent and its sibling continue.

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
