//! A rank that does one all-reduce and ends, which measures the cost of a launch:
//!
//! `cargo build --release --workspace --examples && time target/release/allfold launch -n 4 -- target/release/examples/first`
//!
//! Rank 0 prints how long joining and the all-reduce took within its process.

use allfold_collectives::{Communicator, Error, ReduceOp};
use std::time::Instant;

#[allow(clippy::disallowed_methods, reason = "a measurement of real time")]
fn main() -> Result<(), Error> {
    let begun = Instant::now();
    let comm = Communicator::from_env()?;
    let joined = begun.elapsed();
    let mut ranks = [1f32];
    comm.all_reduce(&mut ranks, ReduceOp::Sum)?;
    if comm.rank().0 == 0 {
        let memory = if comm.shares_memory() { "shared memory" } else { "TCP" };
        println!(
            "{} ranks over {memory}: joined after {joined:?}, reduced after {:?}",
            ranks[0],
            begun.elapsed()
        );
    }
    Ok(())
}
