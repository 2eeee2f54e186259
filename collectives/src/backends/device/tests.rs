//! Every algorithm of the table on the shim, in both forms, to the bit of what its trees say; and on a GPU if there is one.

use super::*;
use crate::check::symbolic;
use crate::registry::ALGORITHMS;
use allfold_kernels::cuda::{Gpu, Order, Shim};
use allfold_kernels::{Element, bf16, divide, reduce};

fn input<T: Element>(rank: u32, count: usize, of: impl Fn(u64) -> T) -> Vec<T> {
    (0..count as u64)
        .map(|i| of((u64::from(rank) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i.wrapping_mul(0xbf58_476d)))
        .collect()
}

/// A number between 1/2 and 2 or so, whose sums round.
fn number(bits: u64) -> f32 {
    1.0 + (bits >> 40) as f32 / (1 << 25) as f32
}

fn conforms<T: Element>(
    machine: &Arc<dyn Machine>,
    algorithm: &'static Algorithm,
    op: ReduceOp,
    of: fn(u64) -> T,
) {
    for (ranks, per, segments) in [(1, 5, 1), (2, 3, 1), (3, 7, 2), (4, 64, 1), (7, 29, 1), (8, 33, 3)] {
        let count = if algorithm.collective.blocked() { per * ranks as usize } else { per * 4 + 1 };
        let root = Rank((ranks * 2 + 1) % ranks);
        let mut group = DeviceRanks::new(machine.clone(), ranks).unwrap();
        let inputs: Vec<Vec<T>> = (0..ranks).map(|rank| input(rank, count, of)).collect();
        for form in [Form::Messages, Form::Fused] {
            let job = Job { algorithm, root, dtype: T::DTYPE, op, form, segments };
            let what = format!("{algorithm:?}, {ranks} ranks, {count} x {}, {op}, {form:?}", T::DTYPE);
            let schedule = group.schedule(&job).unwrap();
            let geometry = match algorithm.collective.blocked() {
                true => Geometry::blocked(&*schedule, (count / ranks as usize) as u64),
                false => Geometry::whole(&*schedule, count as u64),
            };
            let proof = symbolic(&*schedule, algorithm.collective, root).unwrap();
            let memories: Vec<_> = inputs.iter().map(|input| group.main.upload(input).unwrap()).collect();
            let slices: Vec<_> = memories.iter().map(Memory::all).collect();
            // Twice: the second time is the graph's.
            for time in 0..2 {
                slices
                    .iter()
                    .zip(&inputs)
                    .for_each(|(slice, input)| group.main.write(*slice, input).unwrap());
                match group.run(&job, &slices) {
                    Err(Error::Argument(why)) if form == Form::Fused => {
                        assert!(!algorithm.collective.reduces(), "{what}: {why}");
                        continue;
                    }
                    ran => assert!(ran.unwrap().nanoseconds < u64::MAX),
                }
                for rank in (0..ranks).map(Rank) {
                    let got: Vec<T> = group.main.download(slices[rank.index()]).unwrap();
                    let mut want =
                        proof.evaluate(rank, &geometry, &inputs, &|into, from| reduce(op, into, from));
                    if op == ReduceOp::Avg && algorithm.collective.reduces() {
                        divide(&mut want, ranks);
                    }
                    for chunk in 0..schedule.chunks() {
                        for segment in 0..schedule.segments() {
                            // Only what is promised: whole reductions where it reduces, else what is not undefined.
                            let Some((tree, _)) = proof.value(rank, chunk, segment) else { continue };
                            if algorithm.collective.reduces() && !proof.forest().is_everybody_once(tree) {
                                continue;
                            }
                            let range = geometry.piece(chunk, segment);
                            let range = range.start as usize..range.end as usize;
                            let (got, want): (&[u8], &[u8]) = (
                                bytemuck::cast_slice(&got[range.clone()]),
                                bytemuck::cast_slice(&want[range]),
                            );
                            assert_eq!(got, want, "{what}: rank {rank}, chunk {chunk}, time {time}");
                        }
                    }
                }
            }
        }
    }
}

fn table(machine: &Arc<dyn Machine>) {
    for algorithm in ALGORITHMS {
        conforms::<f32>(machine, algorithm, ReduceOp::Sum, number);
        conforms::<bf16>(machine, algorithm, ReduceOp::Avg, |bits| bf16::from_f32(number(bits)));
        if algorithm.collective.reduces() {
            conforms::<i32>(machine, algorithm, ReduceOp::Prod, |bits| bits as i32);
            conforms::<f32>(machine, algorithm, ReduceOp::Max, number);
        }
    }
}

#[test]
fn every_algorithm_on_the_shim() {
    table(&Shim::open(Order::Upwards).unwrap());
}

#[test]
fn every_algorithm_on_a_gpu() {
    match Gpu::open() {
        Ok(machine) => table(&machine),
        Err(why) => println!("SKIP gpu: {why}"),
    }
}

fn ring(ranks: u32) -> (DeviceRanks, Job) {
    let group = DeviceRanks::new(Shim::open(Order::Upwards).unwrap(), ranks).unwrap();
    let algorithm = crate::registry::find(Collective::AllReduce, "ring").unwrap();
    let (dtype, op) = (DType::F32, ReduceOp::Sum);
    (group, Job { algorithm, root: Rank(0), dtype, op, form: Form::Messages, segments: 1 })
}

/// 7 steps that reduce an eighth (three times its bytes) and 7 that copy it (twice), on 8 ranks: 35 S.
#[test]
fn a_ring_of_eight_moves_35_s_and_the_fused_form_16() {
    let (mut group, job) = ring(8);
    let memories: Vec<_> = (0..8).map(|_| group.main.upload(&[1.0f32; 64]).unwrap()).collect();
    let slices: Vec<_> = memories.iter().map(Memory::all).collect();
    assert_eq!(group.run(&job, &slices).unwrap().moved, 35 * 256);
    let fused = Job { form: Form::Fused, ..job };
    assert_eq!(group.run(&fused, &slices).unwrap().moved, 16 * 256);
    assert_eq!(group.main.download::<f32>(slices[5]).unwrap(), [64.0; 64]);
    // One capture for each, however often they run; other buffers are another.
    group.run(&job, &slices).unwrap();
    assert_eq!(group.graphs(), 2);
    let swapped: Vec<_> = slices.iter().rev().copied().collect();
    group.run(&job, &swapped).unwrap();
    assert_eq!(group.graphs(), 3);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (mut group, job) = ring(2);
    let (a, b) = (group.main.memory(64).unwrap(), group.main.memory(60).unwrap());
    assert!(group.run(&job, &[a.all()]).unwrap_err().to_string().contains("1 buffers for 2 ranks"));
    assert!(group.run(&job, &[a.all(), b.all()]).unwrap_err().to_string().contains("60 bytes"));
    let gather = crate::registry::of(Collective::AllToAll).next().unwrap();
    let fused = Job { algorithm: gather, form: Form::Fused, ..job };
    assert!(group.run(&fused, &[a.all(), a.all()]).unwrap_err().to_string().contains("fused form"));
    assert!(DeviceRanks::new(Shim::open(Order::Upwards).unwrap(), 65).is_err());
}
