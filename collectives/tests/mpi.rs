#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
//! Ranks in an MPI job: this program starts itself under `mpirun -n 4`, once for each case. Without `mpirun` it prints SKIP and
//! tests nothing.
//!
//! `cargo test -p allfold-collectives --features mpi --test mpi`

use allfold_collectives::registry::ALGORITHMS;
use allfold_collectives::{
    Collective, Communicator, DType, Element, Error, Extent, Plan, Rank, ReduceOp, World, mpi,
};
use allfold_kernels::{bf16, f16};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const RANKS: u32 = 4;

/// A case's name, what every rank does, and what every rank's error must contain.
type Case = (&'static str, fn(Communicator) -> Result<(), Error>, &'static [&'static str]);

const CASES: &[Case] = &[
    ("every_algorithm_has_the_bits_that_threads_have", every_algorithm, &[]),
    ("splits_messages_and_asynchronous_operations", the_rest, &[]),
    ("native_collectives_compute_what_they_should", native, &[]),
    (
        "ranks_that_call_different_things_are_told_both",
        |comm| comm.all_reduce(&mut vec![0f32; 10 + usize::from(comm.rank().0 == 2)], ReduceOp::Sum),
        &["ranks disagree", "10 x f32", "11 x f32", "rank 2"],
    ),
    (
        "a_large_message_that_does_not_fit_is_a_disagreement_too",
        |comm| comm.all_reduce(&mut vec![0f32; 100_000 - usize::from(comm.rank().0 == 1)], ReduceOp::Sum),
        &["ranks disagree", "100000 x f32", "99999 x f32", "rank 1"],
    ),
    (
        "a_rank_that_returns_early_is_named",
        |comm| if comm.rank().0 == 3 { Ok(()) } else { comm.barrier() },
        &["rank 3 is lost", "returned early, after 0 operations"],
    ),
    (
        "a_rank_that_does_not_come_is_waited_for_until_the_deadline",
        |comm| {
            if comm.rank().0 == 1 {
                // Beyond the deadline: this rank then gets the error of the other ranks.
                std::thread::sleep(Duration::from_secs(3));
            }
            comm.all_reduce(&mut [0i64; 3], ReduceOp::Sum)
        },
        &["deadline of 1s exceeded", "rank 1", "all_reduce(3 x i64"],
    ),
    (
        "an_abort_reaches_all",
        |comm| {
            if comm.rank().0 == 0 {
                comm.abort("the disk is full");
            }
            comm.barrier()
        },
        &["aborted by rank 0: the disk is full"],
    ),
];

fn main() {
    if let Some(case) = std::env::var("ALLFOLD_MPI_CASE").ok().filter(|_| mpirun_started_this()) {
        return rank(&case);
    }
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("SKIP: no mpirun here; scripts/install-mpi.sh installs it");
        return;
    }
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let mut failed = 0;
    let chosen = CASES.iter().filter(|(name, ..)| wanted.as_ref().is_none_or(|part| name.contains(part)));
    for (name, _, says) in chosen.clone() {
        let begun = Instant::now();
        let verdict = job(name, says);
        println!(
            "test {name} ... {} ({:.1} s)",
            if verdict.is_ok() { "ok" } else { "FAILED" },
            begun.elapsed().as_secs_f64()
        );
        if let Err(why) = verdict {
            println!("{why}");
            failed += 1;
        }
    }
    println!("{} passed, {failed} failed", chosen.count() - failed);
    assert!(failed == 0);
}

fn mpirun_started_this() -> bool {
    std::env::var_os("OMPI_COMM_WORLD_RANK").is_some()
}

/// Runs a case as a job of four processes. `says`: what every rank's error must contain; if empty, all ranks must succeed.
fn job(name: &str, says: &[&str]) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new("mpirun")
        .args(["-n", "4", "--allow-run-as-root", "--oversubscribe", "--timeout", "120"])
        .arg(std::env::current_exe().unwrap())
        .env("ALLFOLD_MPI_CASE", name)
        .env("ALLFOLD_MPI_ENDS", folder.path())
        // There may be fewer cores than ranks, so a rank that waits must yield its core.
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .output()
        .map_err(|error| error.to_string())?;
    let told = |what: &str| {
        Err(format!(
            "{what}\n{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ))
    };
    if output.status.success() != says.is_empty() {
        return told(&format!("mpirun ended with {}", output.status));
    }
    for rank in 0..RANKS {
        let end = std::fs::read_to_string(folder.path().join(rank.to_string())).unwrap_or_default();
        let right = match says {
            [] => end == "ok",
            // The rank that returned early gets no error.
            _ if name.contains("returns_early") && rank == 3 => end == "ok",
            says => says.iter().all(|part| end.contains(part)),
        };
        if !right {
            return told(&format!("rank {rank} ended with: {end}"));
        }
    }
    Ok(())
}

/// One process of a job: writes its result to a file. After a failure it waits for the files of all ranks, because mpirun ends
/// the job when the first process exits.
fn rank(case: &str) {
    let (_, body, says) = CASES.iter().find(|(name, ..)| *name == case).unwrap();
    let deadline = Duration::from_secs(if case.contains("deadline") { 1 } else { 60 });
    let options = mpi::Options { deadline, native: case.contains("native"), flight: None };
    let comm = Communicator::over_mpi(options).unwrap();
    assert_eq!(comm.size(), RANKS);
    let me = comm.rank();
    let end = body(comm).map_or_else(|error| error.to_string(), |()| "ok".into());
    let folder = std::env::var("ALLFOLD_MPI_ENDS").unwrap();
    let folder = Path::new(&folder);
    std::fs::write(folder.join(format!("{me}.part")), end).unwrap();
    std::fs::rename(folder.join(format!("{me}.part")), folder.join(me.to_string())).unwrap();
    if says.is_empty() {
        return;
    }
    let until = Instant::now() + Duration::from_secs(60);
    while !(0..RANKS).all(|rank| folder.join(rank.to_string()).exists()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::process::exit(1);
}

/// Pseudo-random bytes as elements: numbers of all sizes, infinities and NaNs among them.
fn noise<T: Element>(seed: u64, count: usize) -> Vec<T> {
    let mut all = vec![T::zeroed(); count];
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for byte in bytemuck::cast_slice_mut::<T, u8>(&mut all) {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = (word >> 56) as u8;
    }
    all
}

/// Calls a collective. Returns the part of the rank's result that is defined, as bytes.
fn call<T: Element>(
    comm: &Communicator,
    collective: Collective,
    count: usize,
    op: ReduceOp,
    root: Rank,
) -> Result<Vec<u8>, Error> {
    let extent = Extent { collective, ranks: comm.size(), root, count };
    let (gives, gets) = (extent.input(comm.rank()), extent.output(comm.rank()));
    let own = |count| noise::<T>(u64::from(comm.rank().0) + 1, count);
    let end = if collective.out_of_place() {
        let mut out = vec![T::zeroed(); gets.len()];
        comm.collective(collective, &own(gives.len()), &mut out, op, root).map(|()| out)?
    } else {
        let mut data = own(extent.whole());
        comm.collective(collective, &[], &mut data, op, root)?;
        data[gets].to_vec()
    };
    Ok(bytemuck::cast_slice(&end).to_vec())
}

fn every_algorithm(mut comm: Communicator) -> Result<(), Error> {
    for row in ALGORITHMS {
        let plan = Plan::default().algorithm(row.collective, row.name)?;
        comm = compared::<f32>(comm, plan, row.collective, 1003, ReduceOp::Sum, Rank(1))?;
        comm = compared::<bf16>(comm, plan, row.collective, 7, ReduceOp::Avg, Rank(3))?;
        comm = compared::<i64>(comm, plan.segment(512)?, row.collective, 5_000, ReduceOp::Max, Rank(0))?;
        comm = compared::<f16>(comm, plan, row.collective, 0, ReduceOp::Prod, Rank(2))?;
    }
    Ok(())
}

/// Runs a call here and on threads, and compares this rank's bytes.
fn compared<T: Element>(
    comm: Communicator,
    plan: Plan,
    collective: Collective,
    count: usize,
    op: ReduceOp,
    root: Rank,
) -> Result<Communicator, Error> {
    let comm = comm.with_plan(plan);
    let got = call::<T>(&comm, collective, count, op, root)?;
    let want = World::threads(RANKS)
        .messages()
        .run(|thread: Communicator| call::<T>(&thread.with_plan(plan), collective, count, op, root))?;
    assert!(got == want[comm.rank().index()], "{collective}, {count} x {}", T::DTYPE);
    Ok(comm)
}

fn the_rest(comm: Communicator) -> Result<(), Error> {
    let me = comm.rank().0;
    // Several large operations at once, whose messages are sent in two parts, while the rank continues.
    let works: Vec<_> = (0..6)
        .map(|at| comm.all_reduce_async(vec![f64::from(me + at); 30_000].into(), ReduceOp::Sum))
        .collect::<Result<_, _>>()?;
    let pair = comm.split(Some(me % 2), 9 - me)?.unwrap();
    assert_eq!((pair.size(), pair.rank().0), (2, u32::from(me < 2)));
    let mut x = [me];
    pair.all_reduce(bytemuck::cast_slice_mut::<u32, u8>(&mut x), ReduceOp::Max)?;
    assert_eq!(x[0], me % 2 + 2);
    for (at, work) in (0..).zip(works) {
        assert!(work.wait()?.iter().all(|sum| *sum == f64::from(6 + 4 * at)));
    }
    // Point-to-point messages, small and large, arrive in order.
    let other = Rank(me ^ 1);
    for count in [1, 20_000, 0, 3] {
        let (mine, mut theirs) = (vec![f64::from(me); count], vec![-1.0; count]);
        if me < other.0 {
            comm.send(&mine, other)?;
            comm.recv(&mut theirs, other)?;
        } else {
            comm.recv(&mut theirs, other)?;
            comm.send(&mine, other)?;
        }
        assert!(theirs.iter().all(|x| *x == f64::from(other.0)));
    }
    comm.barrier()
}

fn native(mut comm: Communicator) -> Result<(), Error> {
    // MPI's own collectives are still used once the ranks share memory for other calls.
    assert!(comm.share_memory()? && comm.planned(Collective::AllReduce, 333, DType::I32)?.native);
    // Integer sums are exact in any order, so MPI's results must equal those of threads.
    for collective in Collective::ALL {
        let got = call::<i32>(&comm, collective, 333, ReduceOp::Sum, Rank(2))?;
        let want = World::threads(RANKS)
            .run(|thread: Communicator| call::<i32>(&thread, collective, 333, ReduceOp::Sum, Rank(2)))?;
        assert!(got == want[comm.rank().index()], "{collective}");
    }
    let mut mean = [f32::from(comm.rank().0 as u16); 5];
    comm.all_reduce(&mut mean, ReduceOp::Avg)?;
    assert_eq!(mean, [1.5; 5]);
    // MPI has no half-precision types: a scheduled algorithm reduces them.
    let mut halves = [bf16::from_f32(2.0); 5];
    comm.all_reduce(&mut halves, ReduceOp::Sum)?;
    assert_eq!(halves, [bf16::from_f32(8.0); 5]);
    Ok(())
}
