//! Defects of `docs/GPU.md` that lie in [`Gpu`]: each is put back in and must be caught by a rule of the stand-in, and the
//! same body must find nothing wrong where it is mended.

use crate::alone::{Found, alone, ensure, is_child, seeded};
use allfold_kernels::cuda::standin::{
    Gate, StandinOptions, standin_compilations, standin_live, standin_spin,
};
use allfold_kernels::cuda::{Error, Gpu, Machine, Queue, launch};
use allfold_kernels::{DType, ReduceOp};
use std::sync::Arc;
use std::time::Duration;

fn sum(queue: &Queue, into: &[f32], from: &[f32]) -> Result<Vec<f32>, Error> {
    let (a, b) = (queue.upload(into)?, queue.upload(from)?);
    launch::reduce(queue, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
    queue.download(a.all())
}

/// Adds what another device has, in place where it can be reached, else by a copy.
#[test]
fn d8_peer_access() {
    let options = StandinOptions { devices: 2, peers: false, ..StandinOptions::default() };
    seeded("defects::d8_peer_access", &[8], options, || {
        let gpu = Gpu::open()?;
        let (here, there) = (Queue::new(gpu.clone(), 0)?, Queue::new(gpu.clone(), 1)?);
        let (a, b) = (here.upload(&[1.0f32; 600])?, there.upload(&[2.0f32; 600])?);
        there.finish()?;
        if gpu.reaches(0, 1) {
            launch::reduce(&here, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
        } else {
            let near = here.memory(b.len())?;
            here.copy(near.all(), b.all())?;
            launch::reduce(&here, DType::F32, ReduceOp::Sum, a.all(), near.all())?;
        }
        let sum = here.download::<f32>(a.all())?;
        ensure(sum == [3.0; 600], sum)
    });
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

/// Two ranks that are threads: the first loads a kernel behind its part of a collective, the second before its own part.
#[test]
#[allow(clippy::disallowed_methods, reason = "the second rank comes when the first one waits in the driver")]
fn d9_loading_beside_a_collective() {
    let options = StandinOptions { devices: 2, limit: Duration::from_secs(3), ..StandinOptions::default() };
    seeded("defects::d9_loading_beside_a_collective", &[9], options, || {
        let (gpu, gate) = (Gpu::open()?, Gate::new(2));
        let queues = [Queue::new(gpu.clone(), 0)?, Queue::new(gpu.clone(), 1)?];
        let collective = |rank: usize| -> Result<(), Error> {
            standin_spin(gpu.native(queues[rank].stream())?, &gate);
            Ok(())
        };
        let load = |rank: usize| sum(&queues[rank], &[1.0], &[rank as f32]);
        let sums = std::thread::scope(|scope| {
            let first = scope.spawn(|| collective(0).and_then(|()| load(0)));
            let second = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(500));
                load(1).and_then(|sum| collective(1).map(|()| sum))
            });
            [first.join().unwrap(), second.join().unwrap()]
        });
        let sums = [sums[0].clone()?, sums[1].clone()?];
        ensure(sums == [[1.0], [2.0]], sums)
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
fn d14_contexts_are_opened_when_they_are_used() {
    let options = StandinOptions { devices: 8, taken: &[5], ..StandinOptions::default() };
    seeded("defects::d14_contexts_are_opened_when_they_are_used", &[14], options, || {
        let gpu = Gpu::open()?;
        ensure(sum(&Queue::new(gpu.clone(), 3)?, &[1.0], &[2.0])? == [3.0], "3.0")?;
        ensure(standin_live().contexts == 1, standin_live())?;
        let busy = Queue::new(gpu.clone(), 5).map(|_| ()).unwrap_err().to_string();
        ensure(
            busy.contains("device 5 is in exclusive-process mode") && busy.contains("-i 5 -c DEFAULT"),
            busy,
        )?;
        ensure(!gpu.reaches(3, 5), "device 5 is another's")?;
        ensure(sum(&Queue::new(gpu, 7)?, &[1.0], &[4.0])? == [5.0], "5.0")
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

/// The source is written over as soon as the call returns.
#[test]
fn d15_copies_from_pageable_memory() {
    let options = StandinOptions { delay: Duration::from_millis(1), ..StandinOptions::default() };
    seeded("defects::d15_copies_from_pageable_memory", &[15], options, || {
        let queue = Queue::new(Gpu::open()?, 0)?;
        for bytes in [16usize, 1000, 16 << 10, 100_000] {
            let count = if bytes == 16 { 2000 } else { 12 };
            let memory = queue.memory(bytes * count)?;
            let mut source = vec![0u8; bytes];
            for nth in 0..count {
                source.fill(nth as u8);
                queue.write(memory.all().part(nth * bytes, bytes)?, &source)?;
                source.fill(0xee);
            }
            let held = queue.download::<u8>(memory.all())?;
            let wrong =
                held.chunks(bytes).enumerate().find(|(nth, part)| part.iter().any(|b| *b != *nth as u8));
            ensure(
                wrong.is_none(),
                format!("copy {:?} of {bytes} bytes holds other values", wrong.map(|w| w.0)),
            )?;
        }
        Ok(())
    });
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
                ensure(error.contains("within a capture") && error.contains("pinned memory"), error)?;
            }
            let graph = gpu.end_capture(queue.stream())?;
            gpu.forget(graph);
            queue.write(memory.all(), &[1u8; 64])?;
            queue.finish()?;
            Ok(())
        },
    );
}

type Call<'a> = Box<dyn Fn() -> Result<(), Error> + Sync + Send + 'a>;

/// Every call from a thread that has no context of its own.
#[test]
fn d18_calls_of_a_new_thread() {
    let options = StandinOptions { devices: 2, ..StandinOptions::default() };
    seeded("defects::d18_calls_of_a_new_thread", &[18], options, || {
        let gpu = Gpu::open()?;
        let queue = Queue::new(gpu.clone(), 1)?;
        let (a, b) = (queue.upload(&[1.0f32; 8])?, queue.upload(&[2.0f32; 8])?);
        let kernel = || launch::reduce(&queue, DType::F32, ReduceOp::Sum, a.all(), b.all());
        kernel()?;
        let (from, to) = (queue.record()?, queue.record()?);
        gpu.begin_capture(queue.stream())?;
        kernel()?;
        let graph = gpu.end_capture(queue.stream())?;
        let calls: Vec<(&str, Call<'_>)> = vec![
            ("happened", Box::new(|| gpu.happened(from.event()))),
            ("between", Box::new(|| gpu.between(from.event(), to.event()).map(|_| ()))),
            // Of a family that is loaded, another kernel, which is looked up in the cached module.
            (
                "a cached module",
                Box::new(|| launch::reduce(&queue, DType::F32, ReduceOp::Max, a.all(), b.all()).map(|_| ())),
            ),
            ("record_again", Box::new(|| from.move_to(&queue))),
            ("wait", Box::new(|| queue.wait(&to))),
            ("idle", Box::new(|| gpu.idle(queue.stream()).map(|_| ()))),
            ("finish", Box::new(|| queue.finish())),
            // SAFETY: the memory of the capture is still there.
            ("replay", Box::new(|| unsafe { gpu.replay(queue.stream(), graph) })),
        ];
        let wrong: Vec<String> = calls
            .into_iter()
            .filter_map(|(name, call)| {
                let answer = std::thread::scope(|scope| scope.spawn(&call).join().unwrap());
                answer.err().map(|error| format!("{name}: {error}"))
            })
            .collect();
        std::thread::scope(|scope| scope.spawn(|| gpu.forget(graph)).join().unwrap());
        std::thread::scope(|scope| scope.spawn(move || drop((from, to))).join().unwrap());
        let live = standin_live();
        ensure(wrong.is_empty() && live.graphs == 0 && live.events == 0, (wrong, live))
    });
}

fn churn(gpu: &Arc<dyn Machine>) -> Found {
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
        // What is gone is never another's, whatever is made after it.
        ensure(gpu.finish(stream).is_err() && gpu.happened(event).is_err(), (stream, event))?;
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
        // SAFETY: of `pin`, and nothing reads it.
        unsafe { gpu.unpin(address) };
        ensure(standin_live().pinned == 0, standin_live())
    });
}
