//! Tests of the defects of `docs/GPU.md` in [`Gpu`]. In a test named by a defect's number, the defect is put back and must be
//! caught by the body or a rule of the stand-in; without the defect the same body must find no error.

use crate::alone::{Found, alone, ensure, is_child, seeded};
use allfold_cuda::{CudaMachine, Error, Gpu, Queue, launch};
use allfold_kernels::{DType, ReduceOp};
use allfold_standin::{StandinOptions, standin_compilations, standin_live};
use std::sync::Arc;

fn sum(queue: &Queue, into: &[f32], from: &[f32]) -> Result<Vec<f32>, Error> {
    let (a, b) = (queue.upload(into)?, queue.upload(from)?);
    launch::reduce(queue, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
    queue.download(a.all())
}

#[test]
fn peers_are_reached_where_the_driver_lets_them() {
    let options = StandinOptions { devices: 3, ..StandinOptions::default() };
    alone("defects::peers_are_reached_where_the_driver_lets_them", "", options, || {
        let gpu = Gpu::open()?;
        let queues = (0..3).map(|device| Queue::new(gpu.clone(), device)).collect::<Result<Vec<_>, _>>()?;
        for (from, to) in [(0, 1), (1, 0), (2, 0), (0, 2), (1, 1)] {
            ensure(gpu.reaches(from, to), (from, to))?;
        }
        let far = queues[2].upload(&[5.0f32; 9])?;
        queues[2].finish()?;
        let near = queues[0].upload(&[1.0f32; 9])?;
        launch::reduce(&queues[0], DType::F32, ReduceOp::Sum, near.all(), far.all())?;
        ensure(queues[0].download::<f32>(near.all())? == [6.0; 9], "6.0")
    });
}

#[test]
fn d13_kernels_are_compiled_once() {
    let options = StandinOptions { devices: 2, ..StandinOptions::default() };
    seeded("defects::d13_kernels_are_compiled_once", &[13], options, || {
        for device in [0, 1, 0, 1] {
            let queue = Queue::new(Gpu::open()?, device)?;
            sum(&queue, &[1.0], &[2.0])?;
        }
        let compiled = standin_compilations();
        ensure(compiled.len() == 1, compiled)
    });
}

#[test]
fn eight_processes_make_eight_contexts() {
    let mut contexts = 0;
    for rank in 0..8 {
        let options = StandinOptions { devices: 8, ..StandinOptions::default() };
        let test = "defects::eight_processes_make_eight_contexts";
        let text = alone(test, &rank.to_string(), options, || {
            sum(&Queue::new(Gpu::open()?, rank)?, &[1.0], &[2.0])?;
            println!("contexts={}", standin_live().contexts);
            Ok(())
        });
        contexts += text.split("contexts=").nth(1).map_or(0, |rest| usize::from(rest.starts_with("1\n")));
    }
    assert!(contexts == 8 || is_child(), "{contexts}");
}

#[test]
fn copies_from_pageable_memory_are_refused_in_a_capture() {
    alone(
        "defects::copies_from_pageable_memory_are_refused_in_a_capture",
        "",
        StandinOptions::default(),
        || {
            let queue = Queue::new(Gpu::open()?, 0)?;
            let (memory, gpu) = (queue.memory(64)?, queue.machine().clone());
            gpu.begin_capture(queue.stream())?;
            for bytes in [4, 64] {
                let error =
                    queue.write(memory.all().part(0, bytes)?, &vec![1u8; bytes]).unwrap_err().to_string();
                ensure(
                    error.contains("a captured copy cannot read") && error.contains("pinned memory"),
                    error,
                )?;
            }
            let graph = gpu.end_capture(queue.stream())?;
            gpu.forget(graph);
            queue.write(memory.all(), &[1u8; 64])?;
            queue.finish()?;
            Ok(())
        },
    );
}

fn churn(gpu: &Arc<dyn CudaMachine>) -> Found {
    let device = Queue::new(gpu.clone(), 0)?;
    let before = standin_live();
    for nth in 0..1000 {
        let queue = Queue::new(gpu.clone(), 0)?;
        let mark = queue.record()?;
        if nth % 100 == 0 {
            ensure(sum(&queue, &[1.0], &[nth as f32])? == [1.0 + nth as f32], nth)?;
        }
        let (stream, event) = (queue.stream(), mark.event());
        drop((queue, mark));
        // A handle of a destroyed object never becomes valid again, whatever is created later.
        ensure(gpu.finish(stream).is_err() && gpu.synchronize(event).is_err(), (stream, event))?;
    }
    device.finish()?;
    let after = standin_live();
    ensure(after.streams == before.streams && after.memory == 0 && after.events <= 4, (before, after))
}

#[test]
fn d20_streams_and_events_are_destroyed() {
    seeded("defects::d20_streams_and_events_are_destroyed", &[20], StandinOptions::default(), || {
        churn(&Gpu::open()?)
    });
}

#[test]
fn d22_no_bytes_are_pinned() {
    seeded("defects::d22_no_bytes_are_pinned", &[22], StandinOptions::default(), || {
        let gpu = Gpu::open()?;
        let address = gpu.pin(0, 0)?;
        // SAFETY: the address is from `pin`, and no work reads the memory.
        unsafe { gpu.unpin(address) };
        ensure(standin_live().pinned == 0, standin_live())
    });
}
