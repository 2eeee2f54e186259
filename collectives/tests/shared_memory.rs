//! Collectives in shared memory, and the parts of their transport that they still depend on: pieces, virtual time and failures.

use allfold_collectives::registry::Algorithm;
use allfold_collectives::schedule::{Combine, Rank, Schedule, Span, Step};
use allfold_collectives::{Collective, Communicator, DType, Error, ReduceOp, World};
use allfold_sim::Topology;
use std::sync::Arc;

/// Two ranks that exchange all data, in more chunks than the symbolic check accepts: so the reduction trees are not known, and the
/// schedule runs by messages.
struct Wide;

const CHUNKS: u32 = 40_000;

impl Schedule for Wide {
    fn ranks(&self) -> u32 {
        2
    }
    fn chunks(&self) -> u32 {
        CHUNKS
    }
    fn rounds(&self) -> u64 {
        u64::from(CHUNKS)
    }
    fn step(&self, rank: Rank, round: u64) -> Step {
        let (other, chunk) = (Rank(1 - rank.0), Span::data(round as u32, 1));
        Step { send: Some((other, chunk)), recv: Some((other, chunk, Combine::Reduce)) }
    }
}

static WIDE: Algorithm = Algorithm::new(Collective::AllReduce, "wide", "chunk by chunk", |_| Arc::new(Wide));

#[test]
fn shared_memory_takes_no_pieces_from_schedules_that_go_by_messages() {
    // A mebibyte in every chunk, in pieces of half a mebibyte.
    let count = (CHUNKS as usize) << 18;
    let planned = |comm: Communicator| -> Result<(bool, u32), Error> {
        let planned = comm.planned(Collective::AllReduce, count, DType::F32)?;
        Ok((comm.shares_memory(), planned.schedule.segments()))
    };
    assert_eq!(World::tcp(2).with(&WIDE).run(planned).unwrap(), [(false, 2); 2]);
    assert_eq!(World::shm(2).with(&WIDE).run(planned).unwrap(), [(true, 2); 2]);
}

#[test]
fn ranks_on_virtual_time_cannot_share_memory_past_the_clock() {
    let world = World::sim(&Topology::named("switch", 2).unwrap());
    let told = world.run(|mut comm: Communicator| -> Result<String, Error> {
        let refused = comm.share_memory().unwrap_err();
        assert!(matches!(refused, Error::Argument(_)), "{refused}");
        // The communicator is as before, and its collectives take time.
        let before = comm.now();
        comm.all_reduce(&mut [1.0f32; 64], ReduceOp::Sum)?;
        assert!(comm.now() > before);
        Ok(refused.to_string())
    });
    assert!(told.unwrap()[0].contains("virtual time"));
}

#[test]
fn threads_that_send_messages_can_come_to_share_memory_and_still_hear_of_failures() {
    let world = World::threads(2).messages();
    let results = world.run_each(|mut comm: Communicator| -> Result<f32, Error> {
        assert!(!comm.shares_memory() && comm.share_memory()?);
        let mut data = [comm.rank().0 as f32];
        comm.all_reduce(&mut data, ReduceOp::Sum)?;
        if comm.rank() == Rank(1) {
            return Ok(data[0]);
        }
        comm.all_reduce(&mut data, ReduceOp::Sum).map(|()| data[0])
    });
    let ranks = results.unwrap().ranks;
    assert_eq!(ranks[1], Ok(1.0));
    assert!(matches!(&ranks[0], Err(Error::PeerLost { rank: Rank(1), .. })), "{ranks:?}");
}
