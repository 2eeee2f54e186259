//! Worlds over all backends but MPI, and the results of their ranks.

use allfold_collectives::{Communicator, Error, Rank, ReduceOp, World};
use allfold_sim::Topology;
use std::sync::mpsc;
use std::time::Duration;

/// What a rank does.
pub type Body = fn(&Communicator) -> Result<(), Error>;

/// All backends but MPI for `ranks` ranks, with this deadline, and their names.
pub fn worlds(ranks: u32, deadline: Duration) -> [(&'static str, World); 6] {
    let topology = Topology::named("switch", ranks).unwrap();
    [
        ("threads", World::threads(ranks).deadline(deadline).any()),
        ("tcp", World::tcp(ranks).deadline(deadline).any()),
        ("shm", World::shm(ranks).deadline(deadline).any()),
        ("tcp, hosts of 2", World::tcp(ranks).ranks_per_host(2).deadline(deadline).any()),
        ("threads by messages", World::threads(ranks).deadline(deadline).messages().any()),
        ("sim", World::sim(&topology).deadline(deadline).watchdog(Duration::from_secs(300)).any()),
    ]
}

/// The number of operations before a body's own: ranks of `shm` first agree on their shared memory by two operations.
pub fn before(backend: &str) -> u64 {
    if backend == "shm" { 2 } else { 0 }
}

/// Runs `body` on every rank and returns the results. A hang fails the test after ten minutes of real time.
pub fn outcome(
    world: impl Into<World>,
    body: impl Fn(Communicator) -> Result<(), Error> + Send + Sync + 'static,
) -> Vec<Result<(), Error>> {
    let ((done, wait), world) = (mpsc::channel(), world.into());
    std::thread::spawn(move || done.send(world.run_each(body).unwrap().ranks));
    wait.recv_timeout(Duration::from_secs(600)).expect("the ranks hang")
}

/// Runs `odd` on rank `who` and `even` on the others, on every backend; then a barrier, in which ranks whose own operation had
/// succeeded before the others called get the error. `check` gets the errors of all ranks.
pub fn disagree(who: u32, even: Body, odd: Body, check: impl Fn(&str, &[Error])) {
    const RANKS: u32 = 4;
    for (name, world) in worlds(RANKS, Duration::from_secs(60)) {
        let ranks = outcome(world, move |comm| {
            let call = if comm.rank() == Rank(who) { odd } else { even };
            call(&comm)?;
            comm.barrier()
        });
        let errors: Vec<Error> = ranks
            .into_iter()
            .enumerate()
            .map(|(rank, result)| match result {
                Err(error) => error,
                Ok(()) => panic!("{name}: rank {rank} was not told"),
            })
            .collect();
        check(name, &errors);
    }
}

/// As [`disagree`]: every rank's error is a mismatch that contains both calls `says` and names rank `who`.
pub fn mismatch(who: u32, even: Body, odd: Body, says: [&str; 2]) {
    disagree(who, even, odd, |backend, errors| {
        for error in errors {
            assert!(matches!(error, Error::Mismatch { .. }), "{backend}: {error}");
            let text = error.to_string();
            says.iter()
                .for_each(|call| assert!(text.contains(call), "{backend}: `{call}` is not in: {text}"));
            assert!(text.contains(&format!("rank {who} called")), "{backend}: {text}");
        }
    });
}

pub fn sum(comm: &Communicator, count: usize) -> Result<(), Error> {
    comm.all_reduce(&mut vec![1f32; count], ReduceOp::Sum)
}
