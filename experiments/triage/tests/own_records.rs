#![allow(missing_docs, clippy::unwrap_used)]
//! Flight records of real worlds are judged rightly.

use allfold_collectives::{Communicator, Error, Rank, ReduceOp, World};
use allfold_sim::{DeviceWork, Topology};
use allfold_triage::model::DumpedJob;
use allfold_triage::slow::straggler;
use allfold_triage::{CauseKind, DumpReader, judge};
use std::path::Path;
use std::time::Duration;

fn sum(comm: &Communicator, count: usize) -> Result<(), Error> {
    comm.all_reduce(&mut vec![1f32; count], ReduceOp::Sum)
}

fn read(folder: &Path) -> DumpedJob {
    let mut reading = DumpReader::default();
    reading.path(folder).unwrap();
    reading.finish().unwrap()
}

/// Runs `body` on four threads, and on four ranks on virtual time; returns the first cause of each: its kind, its ranks, and its words.
fn verdicts(body: fn(&Communicator) -> Result<(), Error>) -> Vec<(CauseKind, Vec<u32>, String)> {
    let topology = Topology::named("switch", 4).unwrap();
    let worlds = [World::threads(4).deadline(Duration::from_secs(60)).any(), World::sim(&topology).any()];
    let of = |world: &World| {
        let folder = tempfile::tempdir().unwrap();
        let _ = world.clone().flight_records(folder.path()).run_each(|comm| body(&comm));
        let cause = judge(&read(folder.path())).causes.remove(0);
        (cause.kind, cause.ranks, cause.said)
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
    for (kind, ranks, said) in found {
        assert_eq!((kind, ranks), (CauseKind::OtherSize, vec![2]), "{said}");
        assert!(said.starts_with("diverged at operation 5: rank 2 called all_reduce(11 x f32"), "{said}");
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
    for (_, ranks, said) in found {
        assert!(said.starts_with("rank 1 never entered operation 3"), "{said}");
        assert_eq!(ranks, [1]);
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
    for (_, ranks, said) in found {
        assert!(said.starts_with("diverged at operation 1: rank 3 called"), "{said}");
        assert_eq!(ranks, [3]);
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
    for (_, ranks, said) in found {
        assert!(said.contains("(ranks 2, 3), all_reduce(20 x f32"), "{said}");
        assert_eq!(ranks, [2]);
    }
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
    let late = straggler(&read(folder.path())).unwrap();
    assert_eq!((late.rank, late.sequence), (2, 1), "{late:?}");
    assert!(late.late > 100_000, "{late:?}");
}
