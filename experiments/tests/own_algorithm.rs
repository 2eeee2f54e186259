//! A program's own algorithm that is wrong: `bench` refuses it before any rank waits for another.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_cli::error::CommandError;
use allfold_cli::invocation::keeping;
use allfold_collectives::Collective;
use allfold_collectives::registry::{self, Algorithm};
use allfold_collectives::schedule::{Combine, Rank, Schedule, Span, Step};
use allfold_experiments::commands::dispatch;
use std::ffi::OsString;
use std::sync::Arc;

/// Every rank receives from the one before, and no rank sends.
struct Unsent(u32);

impl Schedule for Unsent {
    fn ranks(&self) -> u32 {
        self.0
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn rounds(&self) -> u64 {
        1
    }
    fn step(&self, Rank(rank): Rank, _: u64) -> Step {
        let before = Rank((rank + self.0 - 1) % self.0);
        Step { send: None, recv: Some((before, Span::data(0, 1), Combine::Reduce)) }
    }
}

static OWN: [Algorithm; 1] =
    [Algorithm::new(Collective::AllReduce, "unsent", "", |shape| Arc::new(Unsent(shape.ranks())))];

#[test]
fn bench_refuses_a_wrong_algorithm_on_every_backend() {
    registry::add(&OWN).unwrap();
    for backend in ["threads", "shm", "tcp", "sim"] {
        for path in ["fused", "messages"].into_iter().filter(|path| *path == "fused" || backend == "threads")
        {
            let line = format!(
                "bench all_reduce --backend {backend} --path {path} --ranks 4 --algo unsent -b 1K -e 1K -n 1 -w 0 -c 0"
            );
            let (result, _) = keeping(line.split(' ').map(OsString::from).collect(), dispatch::run);
            let Err(CommandError::Usage(said)) = &result else { panic!("{line}: {result:?}") };
            assert!(
                said.contains("all_reduce by unsent is wrong over 4 ranks: rank 0, round 0, chunk 0: receives from rank 3"),
                "{line}: {said}"
            );
        }
    }
}
