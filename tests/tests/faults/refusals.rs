//! Errors that concern only the rank that made the call.

use super::worlds::{outcome, sum, worlds};
use allfold_collectives::registry::Algorithm;
use allfold_collectives::schedule::{Combine, Schedule, Span, Step};
use allfold_collectives::{Collective, Error, Rank, ReduceOp, World};
use std::sync::Arc;
use std::time::Duration;

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
    assert_eq!(run(World::threads(0)), "the world has 0 ranks; it must have 1 or more");
    let unknown = run(World::threads(2).algorithm(Collective::AllReduce, "rink"));
    assert!(unknown.contains("`rink`") && unknown.contains("did you mean `ring`"), "{unknown}");
    assert!(run(World::threads(2).segment(0)).contains("0 bytes"));
    assert!(run(World::threads(2).window(0)).contains("0 steps"));
    assert!(run(World::tcp(2).ranks_per_host(0)).contains("a host has 0 ranks"));
}

/// One chunk from each rank to the next; with `received`, every rank also receives, which gives it its neighbour's data and no sum.
struct ToTheNext {
    ranks: u32,
    received: bool,
}

impl Schedule for ToTheNext {
    fn ranks(&self) -> u32 {
        self.ranks
    }
    fn chunks(&self) -> u32 {
        1
    }
    fn rounds(&self) -> u64 {
        1
    }
    fn step(&self, Rank(rank): Rank, _: u64) -> Step {
        let (next, before) = ((rank + 1) % self.ranks, (rank + self.ranks - 1) % self.ranks);
        let recv = self.received.then_some((Rank(before), Span::data(0, 1), Combine::Copy));
        Step { send: Some((Rank(next), Span::data(0, 1))), recv }
    }
}

/// Ranks of the first would wait for each other until the deadline, and those of the second end with a wrong result.
static WRONG: [Algorithm; 2] = [
    Algorithm::new(Collective::AllReduce, "unheard", "", |shape| {
        Arc::new(ToTheNext { ranks: shape.ranks(), received: false })
    }),
    Algorithm::new(Collective::AllReduce, "swapped", "", |shape| {
        Arc::new(ToTheNext { ranks: shape.ranks(), received: true })
    }),
];

#[test]
fn a_wrong_algorithm_of_a_programs_own_is_refused_before_it_runs() {
    let says = [
        "all_reduce by unheard is wrong over 4 ranks: rank 0, round 0, chunk 0: sends to rank 1, which receives nothing in this round",
        "all_reduce by swapped is wrong over 4 ranks: rank 0, chunk 0: ",
    ];
    for (algorithm, says) in WRONG.iter().zip(says) {
        for (backend, world) in worlds(4, Duration::from_secs(300)) {
            let ranks = outcome(world.with(algorithm), |comm| sum(&comm, 4));
            for result in ranks {
                let error = result.unwrap_err();
                assert!(matches!(error, Error::Registry(_)), "{backend}: {error}");
                assert!(error.to_string().starts_with(says), "{backend}: {error}");
            }
        }
    }
}
