#![allow(missing_docs, clippy::unwrap_used, clippy::disallowed_methods)]
//! A pause of all ranks: a stopped container, a suspended machine, a clock that jumps. The ranks go on, however long it was.

use allfold_collectives::running_time::jump;
use allfold_collectives::{Communicator, Error, ReduceOp, World};
use std::sync::{Arc, Barrier};
use std::time::Duration;

#[test]
fn ranks_that_were_paused_as_a_whole_finish_the_operation_that_they_were_in() {
    let worlds: [(&str, World); 4] = [
        ("threads", World::threads(2).into()),
        ("messages", World::threads(2).messages().into()),
        ("shm", World::shm(2).into()),
        ("tcp", World::tcp(2).into()),
    ];
    for (name, world) in worlds {
        let entered = Arc::new(Barrier::new(2));
        let results = world.run_each(move |comm: Communicator| -> Result<f32, Error> {
            let mut data = [comm.rank().0 as f32 + 1.0];
            comm.all_reduce(&mut data, ReduceOp::Sum)?;
            entered.wait();
            if comm.rank().0 == 1 {
                // The other rank waits. The pause is longer than every deadline, and time enough passes for the other rank to notice it.
                jump(Duration::from_secs(3600));
                std::thread::sleep(Duration::from_secs(1));
            }
            comm.all_reduce(&mut data, ReduceOp::Sum)?;
            Ok(data[0])
        });
        assert_eq!(results.unwrap().ranks, [Ok(6.0), Ok(6.0)], "{name}");
    }
}
