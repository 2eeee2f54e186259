#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! An error, and not a hang, for everything that ranks can do wrong, and the error names it.

use allfold_collectives::{Communicator, Error, Lost, Rank, ReduceOp, World};
use std::time::Duration;

#[test]
fn works() {
    for n in 1..=9 {
        let sums = World::threads(n)
            .run(|comm: Communicator| -> Result<_, Error> {
                let mut data: Vec<i64> = (0..13).map(|i| i + i64::from(comm.rank().0)).collect();
                comm.all_reduce(&mut data, ReduceOp::Sum)?;
                let work = comm.all_reduce_async(vec![1i32; 100].into(), ReduceOp::Sum)?;
                let done = work.wait()?;
                assert!(done.iter().all(|x| *x == n as i32));
                Ok(data)
            })
            .unwrap();
        let want: Vec<i64> = (0..13).map(|i| i * n as i64 + (0..n as i64).sum::<i64>()).collect();
        assert!(sums.iter().all(|s| *s == want), "{n} {sums:?}");
    }
}

#[test]
fn panics() {
    let report = World::threads(3)
        .deadline(Duration::from_secs(5))
        .run_each(|comm: Communicator| -> Result<_, Error> {
            if comm.rank() == Rank(1) {
                panic!("boo");
            }
            comm.all_reduce(&mut [1f32], ReduceOp::Sum)
        })
        .unwrap();
    for r in &report.ranks {
        assert!(matches!(r, Err(Error::PeerLost { rank: Rank(1), cause: Lost::Panicked(_), .. })), "{r:?}");
    }
}
