//! Defects that were found in the GPU code by reading: each is put back in, and a check finds it without a GPU.
//!
//! `cargo test -p allfold-tests --test gpu_defects` prints the table. Numbers are those of `docs/GPU.md`. Each body runs twice:
//! with its defect, when the check must fail with the words of its row; and without, when the check must pass.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod driver;
mod nccl;
mod training;

use allfold_collectives::registry::{ALGORITHMS, find};
use allfold_collectives::testing::Case;
use allfold_collectives::{Collective, DType, Rank, ReduceOp, Report};
use allfold_cuda::{CudaMachine, Memory};
use allfold_gpu::device::{DeviceCollective, DeviceRanks, ExecutionMode};
use allfold_gpu::testing::runs_on;
use allfold_standin::{Shim, ShimOptions};
use std::sync::Arc;

/// One defect, the check that finds it, and a body whose error contains `says` when the defect is put back in.
struct Defect {
    number: u8,
    what: &'static str,
    check: &'static str,
    says: &'static str,
    body: Body,
}

enum Body {
    /// On a shim of this process.
    Shim(fn(Seeded) -> Found),
    /// Over the stand-in for the driver, in a process of its own.
    Driver(fn(&driver::Run) -> driver::Found),
}

impl Defect {
    fn run(&self, seeded: &[u8]) -> Found {
        let seeded: Seeded = Box::leak(seeded.into());
        match self.body {
            Body::Shim(_) if driver::is_child() => Ok(()),
            Body::Shim(body) => body(seeded),
            Body::Driver(body) => {
                body(&driver::Run { seeded, number: self.number }).map_err(|error| error.to_string())
            }
        }
    }
}

/// The defects that are put back in.
type Seeded = &'static [u8];

/// What a body found wrong.
type Found = Result<(), String>;

/// What the ranks returned, or the errors of all that failed: which of them fails first is up to their threads.
fn of_all<R, E: std::fmt::Display>(
    report: allfold_collectives::Result<Report<R, E>>,
) -> Result<Vec<R>, String> {
    let ranks = report.map_err(|error| error.to_string())?.ranks;
    let (mut returned, mut failed) = (Vec::new(), Vec::new());
    for rank in ranks {
        match rank {
            Ok(value) => returned.push(value),
            Err(error) => failed.push(error.to_string()),
        }
    }
    if failed.is_empty() { Ok(returned) } else { Err(failed.join("; ")) }
}

const RACES: &str = "race detector";
const MEMORY: &str = "reach of devices";
const NCCL: &str = "stand-in for NCCL";
const CAPTURES: &str = "capture rules";
const HANGS: &str = "waits of the host";
const DRIVER: &str = "stand-in for the driver";

const DEFECTS: &[Defect] = &[
    Defect {
        number: 1,
        what: "a value is put aside while a peer still reads the one before",
        check: RACES,
        says: "a race: a copy",
        body: Body::Shim(messages),
    },
    Defect {
        number: 2,
        what: "a reader's earlier event replaces its later one",
        check: RACES,
        says: "a race: divide",
        body: Body::Shim(messages),
    },
    Defect {
        number: 3,
        what: "a child's handle is used before NCCL has stored it",
        check: NCCL,
        says: "ncclInvalidArgument",
        body: Body::Shim(nccl::d3_split),
    },
    Defect {
        number: 4,
        what: "an estimate runs the collective",
        check: NCCL,
        says: "an estimate has reduced the data",
        body: Body::Shim(nccl::d4_estimate),
    },
    Defect {
        number: 5,
        what: "training waits in the driver for a sum that never ends",
        check: HANGS,
        says: "a hang",
        body: Body::Shim(training::d5_lost_peer),
    },
    Defect {
        number: 6,
        what: "a captured step waits for a stream that was not captured",
        check: CAPTURES,
        says: "STREAM_CAPTURE_ISOLATION",
        body: Body::Shim(training::d6_local_sgd),
    },
    Defect {
        number: 7,
        what: "NCCL is taken where two ranks share a GPU",
        check: NCCL,
        says: "are on one GPU, which NCCL",
        body: Body::Shim(nccl::d7_one_gpu),
    },
    Defect {
        number: 8,
        what: "kernels use memory that their device does not reach",
        check: MEMORY,
        says: "CUDA_ERROR_ILLEGAL_ADDRESS",
        body: Body::Shim(without_peers),
    },
    Defect {
        number: 8,
        what: "the driver's answer about peer access is not looked at",
        check: DRIVER,
        says: "ILLEGAL_ADDRESS",
        body: Body::Driver(driver::d8_peer_access),
    },
    Defect {
        number: 9,
        what: "a lock is held while kernels are compiled and loaded",
        check: DRIVER,
        says: "LAUNCH_TIMEOUT",
        body: Body::Driver(driver::d9_loading_beside_a_collective),
    },
    Defect {
        number: 14,
        what: "every process makes a context on every GPU",
        check: DRIVER,
        says: "exclusive-process mode",
        body: Body::Driver(driver::d14_contexts_are_opened_when_they_are_used),
    },
    Defect {
        number: 15,
        what: "the source of a copy from pageable memory is used again too soon",
        check: DRIVER,
        says: "holds other values",
        body: Body::Driver(driver::d15_copies_from_pageable_memory),
    },
    Defect {
        number: 18,
        what: "calls are made without a current context",
        check: DRIVER,
        says: "INVALID_CONTEXT",
        body: Body::Driver(driver::d18_calls_of_a_new_thread),
    },
    Defect {
        number: 19,
        what: "a rank replays a captured sum that another launches",
        check: NCCL,
        says: "ranks disagree",
        body: Body::Shim(training::d19_uneven),
    },
];

fn shim(options: ShimOptions) -> Arc<dyn CudaMachine> {
    Shim::with(options).unwrap()
}

/// Averages by every algorithm that reduces, whole and in segments.
fn messages(seeded: Seeded) -> Found {
    let machine = shim(ShimOptions { seeded, ..ShimOptions::default() });
    let reducing = ALGORITHMS.iter().filter(|algorithm| algorithm.collective.reduces());
    let forms = [(4, None), (4, Some(16)), (7, Some(16))];
    for (algorithm, (ranks, segment)) in reducing.flat_map(|one| forms.map(|mode| (one, mode))) {
        let (dtype, op, root) = (DType::F64, ReduceOp::Avg, Rank(ranks - 2));
        let case = Case { ranks, root, count: 9, dtype, op, segment, window: 1, buffered: 0 };
        runs_on(&machine, algorithm, &case).map_err(|failure| failure.to_string())?;
    }
    Ok(())
}

/// Two ranks on devices that do not reach each other: the group of ranks is refused; with the defect, its collective fails.
fn without_peers(seeded: Seeded) -> Found {
    let machine = shim(ShimOptions { devices: 2, peers: false, seeded, ..ShimOptions::default() });
    let mut group = match DeviceRanks::new(machine, 2) {
        Err(refused) if refused.to_string().contains("no peer access") => return Ok(()),
        Err(other) => return Err(other.to_string()),
        Ok(group) => group,
    };
    let algorithm = find(Collective::AllReduce, "ring").unwrap();
    let (dtype, op, mode) = (DType::F32, ReduceOp::Sum, ExecutionMode::Messages);
    let job = DeviceCollective { algorithm, root: Rank(0), dtype, op, mode, segments: 1 };
    let memories = [0, 1].map(|rank| group.queue(Rank(rank)).unwrap().upload(&[1.0f32; 4]).unwrap());
    group.run(&job, &memories.each_ref().map(Memory::all)).map(|_| ()).map_err(|error| error.to_string())
}

fn main() {
    if driver::is_child() {
        // One of the rows ends this process.
        for defect in DEFECTS {
            let _ = (defect.run(&[]), defect.run(&[defect.number]));
        }
        return;
    }
    println!("{:>2} {:<74} {:<22} caught mended  what the check says", "", "defect", "check");
    // Bodies that wait for a deadline take most of the time, so all run at once.
    let ends: Vec<[Found; 2]> = std::thread::scope(|scope| {
        let start = |defect: &'static Defect| {
            [vec![defect.number], Vec::new()].map(|seeded| scope.spawn(move || defect.run(&seeded)))
        };
        let running: Vec<_> = DEFECTS.iter().map(start).collect();
        running.into_iter().map(|both| both.map(|run| run.join().unwrap())).collect()
    });
    let mut wrong = Vec::new();
    for (defect, [with, without]) in DEFECTS.iter().zip(ends) {
        let caught = with.as_ref().is_err_and(|error| error.contains(defect.says));
        let Defect { number, what, check, says, .. } = defect;
        println!("{number:>2} {what:<74} {check:<22} {caught:<6} {:<7} {says}", without.is_ok());
        if !caught || without.is_err() {
            wrong.push(format!("{number}: with the defect {with:?}, without {without:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
