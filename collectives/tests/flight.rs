#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! Failures leave flight records.

use allfold_collectives::flight::{Record, State};
use allfold_collectives::{Communicator, Error, ReduceOp, World};
use allfold_sim::Topology;

fn sum(comm: &Communicator, count: usize) -> Result<(), Error> {
    comm.all_reduce(&mut vec![1f32; count], ReduceOp::Sum)
}

#[test]
fn success_leaves_no_record() {
    let folder = tempfile::tempdir().unwrap();
    World::threads(2).flight_records(folder.path()).run(|comm| comm.barrier()).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_record_on_virtual_time_says_when() {
    let folder = tempfile::tempdir().unwrap();
    let topology = Topology::named("switch", 2).unwrap();
    let _ = World::sim(&topology).flight_records(folder.path()).run(|comm| {
        sum(&comm, 1 << 20)?;
        comm.abort("enough");
        comm.barrier()
    });
    let record = Record::read(&folder.path().join(Record::name(0))).unwrap();
    let [first, second] = &record.entries[..] else { panic!("{record:?}") };
    assert_eq!((first.state, second.state), (State::Done, State::Failed));
    assert!(first.ended_us.unwrap() > 10.0 && second.issued_us >= first.ended_us.unwrap());
    assert!(second.error.as_ref().unwrap().contains("enough"));
}
