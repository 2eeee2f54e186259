#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]
//! Failures leave flight records, and triage names their causes.

use allfold_collectives::flight::{Diagnosis, Record, State, straggler, triage};
use allfold_collectives::{Communicator, Error, Rank, ReduceOp, World};
use allfold_sim::{DeviceWork, Topology};
use std::time::Duration;

fn sum(comm: &Communicator, count: usize) -> Result<(), Error> {
    comm.all_reduce(&mut vec![1f32; count], ReduceOp::Sum)
}

/// Runs `body` on four threads, and on four ranks on virtual time; returns the diagnoses of their flight records.
fn verdicts(body: fn(&Communicator) -> Result<(), Error>) -> Vec<(Diagnosis, Vec<Rank>)> {
    let topology = Topology::named("switch", 4).unwrap();
    let worlds = [World::threads(4).deadline(Duration::from_secs(60)).any(), World::sim(&topology).any()];
    let of = |world: &World| {
        let folder = tempfile::tempdir().unwrap();
        let _ = world.clone().flight_records(folder.path()).run_each(|comm| body(&comm));
        let files = std::fs::read_dir(folder.path()).unwrap();
        let records: Vec<Record> = files.map(|file| Record::read(&file.unwrap().path()).unwrap()).collect();
        triage(&records)
    };
    worlds.iter().map(of).collect()
}

#[test]
fn a_mismatch_is_found_at_its_operation() {
    let found = verdicts(|comm| {
        (0..5).try_for_each(|_| sum(comm, 100))?;
        sum(comm, if comm.rank() == Rank(2) { 11 } else { 10 })?;
        comm.barrier()
    });
    for (verdict, unseen) in found {
        let Diagnosis::Diverged { group: 0, sequence: 5, calls, .. } = &verdict else { panic!("{verdict}") };
        assert!(
            calls.iter().any(|(call, ranks)| call.contains("11 x f32") && *ranks == [Rank(2)]),
            "{verdict}"
        );
        assert!(unseen.is_empty());
    }
}

#[test]
fn a_rank_that_leaves_is_one_that_never_entered() {
    let found = verdicts(|comm| {
        (0..3).try_for_each(|_| sum(comm, 100))?;
        if comm.rank() == Rank(1) {
            return Ok(());
        }
        (0..3).try_for_each(|_| sum(comm, 7))?;
        comm.barrier()
    });
    for (verdict, _) in found {
        let Diagnosis::NeverEntered { sequence: 3, absent, .. } = &verdict else { panic!("{verdict}") };
        assert_eq!(*absent, [Rank(1)]);
    }
}

#[test]
fn a_call_that_one_rank_leaves_out_is_seen() {
    let found = verdicts(|comm| {
        sum(comm, 100)?;
        if comm.rank() != Rank(3) {
            sum(comm, 5)?;
        }
        sum(comm, 6)?;
        comm.barrier()
    });
    for (verdict, _) in found {
        assert!(matches!(&verdict, Diagnosis::Diverged { sequence: 1, .. }), "{verdict}");
    }
}

#[test]
fn a_smaller_group_is_named_and_asynchronous_calls_are_recorded() {
    let found = verdicts(|comm| {
        let half = comm.split(Some(comm.rank().0 / 2), 0)?.unwrap();
        let work = half.all_reduce_async(vec![1f32; 10].into(), ReduceOp::Sum)?;
        work.wait()?;
        if comm.rank() == Rank(2) {
            panic!("as planned");
        }
        // No operation of the world follows: ranks 0 and 1 might or might not wait in it for ranks 2 and 3.
        half.all_reduce_async(vec![1f32; 20].into(), ReduceOp::Sum)?.wait()?;
        Ok(())
    });
    for (verdict, _) in found {
        let Diagnosis::NeverEntered { group, call, absent, .. } = &verdict else { panic!("{verdict}") };
        assert_ne!(*group, 0);
        assert!(call.contains("20 x f32"), "{verdict}");
        assert_eq!(*absent, [Rank(0)], "rank 2 of the world is rank 0 of its half");
    }
}

#[test]
fn success_leaves_no_record() {
    let folder = tempfile::tempdir().unwrap();
    World::threads(2).flight_records(folder.path()).run(|comm| comm.barrier()).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_straggler_on_virtual_time_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let topology = Topology::named("switch", 4).unwrap();
    let _ = World::sim(&topology).flight_records(folder.path()).run_each(|comm| {
        sum(&comm, 100)?;
        if comm.rank() == Rank(2) {
            comm.charge(&DeviceWork { bytes: 1 << 30, ..DeviceWork::default() });
        }
        sum(&comm, 100)?;
        // After this barrier a rank can rely on the fact that all ranks have finished the sum.
        comm.barrier()?;
        comm.abort("enough");
        comm.barrier()
    });
    let files = Record::all_in(folder.path()).unwrap();
    let records: Vec<Record> = files.iter().map(|file| Record::read(file).unwrap()).collect();
    let late = straggler(&records).unwrap();
    assert_eq!((late.rank, late.sequence), (Rank(2), 1), "{late}");
    assert!(late.late_us > 100.0, "{late}");
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
