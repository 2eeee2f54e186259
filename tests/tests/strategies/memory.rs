//! The memory that each rank holds between two steps, by class, as ZeRO promises it.

use crate::{ROWS, gpt, on};
use allfold_collectives::World;
use allfold_trainer::config::ElementType;
use allfold_trainer::{MemoryUse, Observer, StepReport, train};

/// Records the memory that the rank held after its last step.
#[derive(Default)]
struct Held(MemoryUse);

impl Observer for Held {
    fn step(&mut self, report: &StepReport) {
        self.0 = report.memory;
    }
}

/// The memory that every rank of `ranks` holds, in order of ranks.
fn held(name: &str, ranks: u32) -> Vec<MemoryUse> {
    let row = ROWS.iter().find(|row| row.name == name).unwrap();
    let base = gpt().with(|c| {
        c.optimiser.name = "adam".into();
        c.precision.dtype = ElementType::F32;
        c.training.max_steps = 2;
    });
    let config = on(row, &base, (row.data)(ranks).unwrap());
    let body = |comm| {
        let mut held = Held::default();
        train(&config, &comm, &mut held).map(|_| held.0)
    };
    World::threads(ranks).run(body).unwrap()
}

#[test]
fn sharded_classes_fall_to_a_part_for_each_rank() {
    let ranks = 8;
    let whole = held("ddp", ranks)[0];
    println!("{:<14} | {:>9} | {:>9} | {:>9}", "8 ranks, bytes", "params", "gradients", "state");
    // Each of the twelve units is padded so that 8 ranks divide it: a part has at most one element of padding for each unit.
    let part = |bytes: u64, vectors: u64| bytes / 8..=bytes / 8 + vectors * 12 * 4;
    for (name, sharded) in
        [("zero1", [false, false, true]), ("zero2", [false, true, true]), ("zero3", [true; 3])]
    {
        for (rank, memory) in held(name, ranks).into_iter().enumerate() {
            if rank == 0 {
                let MemoryUse { params, gradients, optimiser, .. } = memory;
                println!("{name:<14} | {params:>9} | {gradients:>9} | {optimiser:>9}");
            }
            let classes = [
                (memory.params, whole.params, 1),
                (memory.gradients, whole.gradients, 1),
                (memory.optimiser, whole.optimiser, 2),
            ];
            for ((is, was, vectors), sharded) in classes.into_iter().zip(sharded) {
                let padding = vectors * 12 * 7 * 4;
                match sharded {
                    // The last ranks' parts may be padding only, which has no state.
                    true if vectors == 2 => {
                        assert!(is <= *part(was, vectors).end(), "{name}, rank {rank}: {is}, {was}")
                    }
                    true => assert!(part(was, vectors).contains(&is), "{name}, rank {rank}: {is}, {was}"),
                    false => assert!((was..=was + padding).contains(&is), "{name}, rank {rank}: {is}, {was}"),
                }
            }
        }
    }
}

#[test]
fn only_the_first_rank_of_data_parallel_has_an_optimiser_and_all_outputs() {
    let memory = held("data_parallel", 4);
    assert!(memory[0].optimiser > 0 && memory[1..].iter().all(|rank| rank.optimiser == 0));
    // Between steps the activations' memory is in the pool from which activation gradients are allocated.
    let passes = |memory: &MemoryUse| memory.activations + memory.activation_gradients;
    assert!(memory[1..].iter().all(|rank| passes(rank) < passes(&memory[0])));
    assert!(memory.iter().all(|rank| rank.params == memory[0].params));
}

#[test]
fn stages_share_the_parameters_and_both_ends_hold_what_is_tied() {
    let whole = held("ddp", 4)[0].params;
    let stages = held("1f1b", 4);
    let tied = 13 * 16 * 4;
    assert_eq!(stages.iter().map(|stage| stage.params).sum::<u64>(), whole + tied);
    assert!(stages.iter().all(|stage| stage.params < whole / 2 && stage.gradients <= stage.params));
}
