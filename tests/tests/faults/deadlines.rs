//! Ranks that do not enter a call, and deadlines that expire.

use super::worlds::{outcome, sum, worlds};
use allfold_collectives::{Collective, Error, Rank, World};
use allfold_sim::{Costs, DeviceWork, Faults, Picos, Topology};
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn a_rank_that_skips_a_call_is_named_at_the_deadline() {
    // While the others wait in a barrier, rank 3 computes for an hour of virtual time; in real time, until their calls have failed.
    for (backend, world) in worlds(4, Duration::from_millis(500)) {
        let (tell, told) = mpsc::channel();
        let (told, others) = (std::sync::Mutex::new(told), if backend == "sim" { 0 } else { 3 });
        let ranks = outcome(world, move |comm| {
            if comm.rank() == Rank(3) {
                comm.charge(&DeviceWork { flops: 1 << 60, ..DeviceWork::default() });
                let told = told.lock().unwrap();
                (0..others).for_each(|_| told.recv().unwrap());
                // All others have entered the first barrier. If their failure is reported late, the second barrier returns it.
                return comm.barrier().and_then(|()| comm.barrier());
            }
            let result = comm.barrier();
            tell.send(()).unwrap();
            result
        });
        for result in ranks {
            let Err(Error::DeadlineExceeded { waiting_on, entered: false, call, .. }) = &result else {
                panic!("{backend}: {result:?}");
            };
            assert_eq!(
                (&waiting_on[..], call.to_string().split('(').next()),
                (&[Rank(3)][..], Some("barrier"))
            );
        }
    }
}

#[test]
fn ranks_that_wait_for_each_other_for_ever() {
    for (backend, world) in worlds(2, Duration::from_millis(300)) {
        let ranks = outcome(world, |comm| {
            let peer = Rank(1 - comm.rank().0);
            comm.recv(&mut [0u8; 1], peer)
        });
        for result in ranks {
            let error = result.unwrap_err();
            match &error {
                Error::Deadlock { waits } if backend == "sim" => assert_eq!(waits.len(), 2, "{error}"),
                Error::DeadlineExceeded { .. } if backend != "sim" => {}
                _ => panic!("{backend}: {error}"),
            }
        }
    }
}

#[test]
fn virtual_time_that_runs_out_is_an_error_and_no_panic() {
    let topology = Topology::named("switch", 3).unwrap();
    let world = World::sim(&topology).algorithm(Collective::AllReduce, "ring");
    let far = Costs { overhead: Picos(u64::MAX / 2), launch: Picos(u64::MAX / 2), ..Costs::default() };
    let faults = |rule: &str| Faults::parse([rule], &topology).unwrap();
    let worlds = [
        world.clone().costs(far),
        world.clone().faults(faults("slow_rank=0:x18000000000000")),
        world.clone().faults(faults("slow_link=up[0]:x18000000000000")),
        world.clone().faults(faults("slow_link=down[1]:+18000000000ms")),
    ];
    for (nth, world) in worlds.into_iter().enumerate() {
        let ranks = outcome(world, |comm| (0..3).try_for_each(|_| sum(&comm, 40_000_000 / 4)));
        for result in &ranks {
            assert!(
                matches!(result, Err(Error::Endless | Error::Poisoned { .. })),
                "world {nth}: {result:?}"
            );
        }
    }
}

#[test]
fn a_rank_that_blocks_elsewhere_on_virtual_time_is_named() {
    let topology = Topology::named("switch", 2).unwrap();
    let world = World::sim(&topology).watchdog(Duration::from_millis(100));
    let (hold, held) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let ranks = outcome(world, move |comm| {
        if comm.rank() == Rank(1) {
            // Until rank 0 has its error.
            held.lock().unwrap().recv().unwrap();
            return comm.barrier();
        }
        let result = comm.barrier();
        hold.send(()).unwrap();
        result
    });
    for result in ranks {
        assert!(
            matches!(&result, Err(Error::Unresponsive { waiting_on, .. }) if waiting_on == &[Rank(1)]),
            "{result:?}"
        );
    }
}
