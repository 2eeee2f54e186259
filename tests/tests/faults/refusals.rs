//! Errors that concern only the rank that made the call.

use super::worlds::{outcome, sum, worlds};
use allfold_collectives::{Collective, Error, Rank, ReduceOp, World};
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
