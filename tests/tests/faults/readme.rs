//! The faults that the README counts.

use super::worlds::{outcome, worlds};
use allfold_collectives::{Communicator, Error, Rank, ReduceOp};
use std::time::Duration;

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

/// Four checked sums, of which rank `who` spoils the one after the first `at`; then a barrier, in which ranks whose own operation
/// had succeeded get the error.
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
