//! Every defect that was found in the GPU half by reading, put back in, and the check that finds it without a GPU.
//!
//! `cargo test -p allfold-tests --test gpu_defects -- --nocapture` prints the table. Numbers are those of `docs/GPU.md`. Each
//! body runs twice: with its defect, when the check must say the words of its row, and without, when it must pass.
#![allow(missing_docs)]

use allfold_collectives::device::{DeviceRanks, Form, Job};
use allfold_collectives::registry::find;
use allfold_collectives::testing::{Case, runs_on};
use allfold_collectives::{Collective, DType, Rank, ReduceOp};
use allfold_kernels::cuda::{Machine, Memory, Shim, ShimOptions};
use std::sync::Arc;

/// One defect, what finds it, and a body that fails by these words when the defect is in.
struct Defect {
    number: u8,
    what: &'static str,
    check: &'static str,
    says: &'static str,
    body: fn(Seeded) -> Result<(), String>,
}

/// The defects that are put back in.
type Seeded = &'static [u8];

const RACES: &str = "race detector";
const MEMORY: &str = "reach of devices";

const DEFECTS: &[Defect] = &[
    Defect {
        number: 1,
        what: "a value is put aside while a peer still reads the one before",
        check: RACES,
        says: "a race: a copy",
        body: |seeded| messages(seeded, "recursive_doubling", ReduceOp::Sum, None),
    },
    Defect {
        number: 2,
        what: "a reader's earlier event replaces its later one",
        check: RACES,
        says: "a race: divide",
        body: |seeded| messages(seeded, "chain", ReduceOp::Avg, Some(8)),
    },
    Defect {
        number: 8,
        what: "kernels use memory that their device does not reach",
        check: MEMORY,
        says: "CUDA_ERROR_ILLEGAL_ADDRESS",
        body: without_peers,
    },
];

fn shim(options: ShimOptions) -> Arc<dyn Machine> {
    Shim::with(options).unwrap()
}

fn messages(seeded: Seeded, algorithm: &str, op: ReduceOp, segment: Option<u64>) -> Result<(), String> {
    let machine = shim(ShimOptions { seeded, ..ShimOptions::default() });
    let algorithm = find(Collective::AllReduce, algorithm).unwrap();
    let case =
        Case { ranks: 4, root: Rank(0), count: 64, dtype: DType::F32, op, segment, window: 1, buffered: 0 };
    runs_on(&machine, algorithm, &case).map_err(|failure| failure.to_string())
}

/// Two ranks on devices that do not reach each other: the collective is refused in one line and nothing is lost.
fn without_peers(seeded: Seeded) -> Result<(), String> {
    let machine = shim(ShimOptions { devices: 2, peers: false, seeded, ..ShimOptions::default() });
    let mut group = match DeviceRanks::new(machine, 2) {
        Err(refused) if refused.to_string().contains("no peer access") => return Ok(()),
        Err(other) => return Err(other.to_string()),
        Ok(group) => group,
    };
    let algorithm = find(Collective::AllReduce, "ring").unwrap();
    let (dtype, op, form) = (DType::F32, ReduceOp::Sum, Form::Messages);
    let job = Job { algorithm, root: Rank(0), dtype, op, form, segments: 1 };
    let memories = [0, 1].map(|rank| group.queue(Rank(rank)).unwrap().upload(&[1.0f32; 4]).unwrap());
    group.run(&job, &memories.each_ref().map(Memory::all)).map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn every_defect_is_found_when_it_is_put_back_in() {
    println!("{:>2} {:<66} {:<22} {:<8} mended", "", "defect", "check", "caught");
    let mut wrong = Vec::new();
    for Defect { number, what, check, says, body } in DEFECTS {
        let seeded: Seeded = Box::leak(Box::new([*number]));
        let (with, without) = (body(seeded), body(&[]));
        let caught = with.as_ref().is_err_and(|error| error.contains(says));
        println!("{number:>2} {what:<66} {check:<22} {caught:<8} {}", without.is_ok());
        if !caught || without.is_err() {
            wrong.push(format!("{number}: with the defect {with:?}, without {without:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
