//! Tests that every algorithm of the table conforms on devices and over NCCL (on the shim, and on a GPU if there is one), of the
//! bytes that a collective moves, and of refused inputs.

use super::*;
use crate::registry::ALGORITHMS;
use crate::testing::conforms_on;
use allfold_standin::{Counter, FiberOrder, Shim, ShimOptions};

fn table(machine: &Arc<dyn CudaMachine>) {
    conforms_on(machine, ALGORITHMS).unwrap();
}

fn shim(devices: usize) -> ShimOptions {
    ShimOptions { devices, ..ShimOptions::default() }
}

/// Both forms give the exact bits, with no unordered memory access, and leave no stream or event behind.
fn every_algorithm_on(devices: usize) {
    let machine = Shim::with(shim(devices)).unwrap();
    table(&machine);
    assert_eq!(Shim::of(machine.as_ref()).unwrap().live(), (0, 0), "streams and events after it");
}

#[test]
fn every_algorithm_on_a_shim_of_1_device() {
    every_algorithm_on(1);
}

#[test]
fn every_algorithm_on_a_shim_of_2_devices() {
    every_algorithm_on(2);
}

#[test]
fn every_algorithm_on_a_shim_of_4_devices() {
    every_algorithm_on(4);
}

/// The race detector finds two earlier defects of the message form, which the test puts back in.
#[test]
fn seeded_races_of_the_message_form_are_found() {
    for (seeded, found) in [(&[1][..], "a copy on stream"), (&[2], "divide_")] {
        let machine = Shim::with(ShimOptions { seeded, ..shim(1) }).unwrap();
        let error = conforms_on(&machine, ALGORITHMS).unwrap_err().to_string();
        assert!(error.contains("a race: ") && error.contains(found), "{seeded:?}: {error}");
    }
}

#[test]
fn every_algorithm_on_a_gpu() {
    match allfold_standin::gpu() {
        Ok(machine) => table(&machine),
        Err(why) => println!("SKIP gpu: {why}"),
    }
}

/// Without peer access, ranks on several devices are refused; a kernel that accesses a peer's memory anyway fails with an illegal
/// address.
#[test]
fn devices_that_do_not_reach_each_other_are_refused() {
    let apart = |seeded| Shim::with(ShimOptions { peers: false, seeded, ..shim(2) }).unwrap();
    let error = DeviceRanks::new(apart(&[]), 2).err().unwrap().to_string();
    assert!(
        error.starts_with("device 0 does not reach the memory of device 1 (no peer access): use"),
        "{error}"
    );
    let machine = apart(&[8]);
    let mut group = DeviceRanks::new(machine.clone(), 2).unwrap();
    let memories = [0, 1].map(|rank| group.queue(Rank(rank)).unwrap().upload(&[1.0f32; 4]).unwrap());
    let (_, job) = ring(2);
    let error = group.run(&job, &memories.each_ref().map(Memory::all)).unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
}

fn ring(ranks: u32) -> (DeviceRanks, DeviceCollective) {
    let group = DeviceRanks::new(Shim::open(FiberOrder::Upwards).unwrap(), ranks).unwrap();
    let algorithm = crate::registry::find(Collective::AllReduce, "ring").unwrap();
    let (dtype, op) = (DType::F32, ReduceOp::Sum);
    (
        group,
        DeviceCollective { algorithm, root: Rank(0), dtype, op, mode: ExecutionMode::Messages, segments: 1 },
    )
}

/// S: a buffer's bytes. Each of 8 ranks reduces S/8 in 7 steps (3 bytes moved per byte) and copies S/8 in 7 (2 bytes): 35 S in all.
#[test]
fn a_ring_of_eight_moves_35_s_and_the_fused_form_16() {
    const BYTES: usize = 1 << 16;
    let machine = Counter::open();
    let mut group = DeviceRanks::new(machine.clone(), 8).unwrap();
    let memories: Vec<_> = (0..8).map(|_| group.main.memory(BYTES).unwrap()).collect();
    let slices: Vec<_> = memories.iter().map(Memory::all).collect();
    for (mode, times) in [(ExecutionMode::Messages, 35), (ExecutionMode::Fused, 16)] {
        let counter = Counter::of(&*machine).unwrap();
        counter.clear();
        group.run(&DeviceCollective { mode, ..ring(8).1 }, &slices).unwrap();
        let moved: u64 = counter.traffic().values().map(|kind| kind.read + kind.written).sum();
        // Less than a hundredth more is for tables, and for the launches that load the kernels.
        let whole = times * BYTES as u64;
        assert!(
            (whole..whole + BYTES as u64 / 8).contains(&moved),
            "{mode:?}: {moved}, and {whole} are right"
        );
    }
}

#[test]
fn each_form_is_captured_once_for_the_same_buffers() {
    let (mut group, job) = ring(8);
    let memories: Vec<_> = (0..8).map(|_| group.main.upload(&[1.0f32; 64]).unwrap()).collect();
    let slices: Vec<_> = memories.iter().map(Memory::all).collect();
    group.run(&job, &slices).unwrap();
    let fused = DeviceCollective { mode: ExecutionMode::Fused, ..job };
    group.run(&fused, &slices).unwrap();
    assert_eq!(group.main.download::<f32>(slices[5]).unwrap(), [64.0; 64]);
    // Each form is captured once for any number of runs; other buffers need another capture.
    group.run(&job, &slices).unwrap();
    assert_eq!(group.graphs(), 2);
    let swapped: Vec<_> = slices.iter().rev().copied().collect();
    group.run(&job, &swapped).unwrap();
    assert_eq!(group.graphs(), 3);
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let (mut group, job) = ring(2);
    let (a, b) = (group.main.memory(64).unwrap(), group.main.memory(60).unwrap());
    assert!(
        group.run(&job, &[a.all()]).unwrap_err().to_string().contains("1 buffers were passed for 2 ranks")
    );
    assert!(group.run(&job, &[a.all(), b.all()]).unwrap_err().to_string().contains("60 bytes"));
    let gather = crate::registry::of(Collective::AllToAll).next().unwrap();
    let fused = DeviceCollective { algorithm: gather, mode: ExecutionMode::Fused, ..job };
    assert!(group.run(&fused, &[a.all(), a.all()]).unwrap_err().to_string().contains("fused kernel"));
    assert!(DeviceRanks::new(Shim::open(FiberOrder::Upwards).unwrap(), 65).is_err());
}
