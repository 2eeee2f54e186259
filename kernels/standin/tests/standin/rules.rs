//! Tests of the driver's rules by the calls of a [`CudaMachine`]: order, captures, memory, errors that persist.

use crate::alone::{alone, ensure};
use allfold_cuda::{Error, Feed, Gpu, Queue, launch};
use allfold_kernels::{DType, ReduceOp};
use allfold_standin::{StandinOptions, standin_live, standin_violations};
use std::time::Duration;

fn slow(devices: usize) -> StandinOptions {
    StandinOptions { devices, delay: Duration::from_millis(1), ..StandinOptions::default() }
}

/// The text of an expected error.
fn refused<T>(answer: Result<T, Error>) -> String {
    answer.err().map_or_else(|| "it was not refused".into(), |error| error.to_string())
}

/// Two streams of two devices exchange numbers; without the events the result would be wrong.
#[test]
fn streams_keep_order_and_events_order_streams() {
    alone("rules::streams_keep_order_and_events_order_streams", "", slow(2), || {
        let gpu = Gpu::open()?;
        let queues = [Queue::new(gpu.clone(), 0)?, Queue::new(gpu, 1)?];
        let numbers = [queues[0].upload(&[1.0f32; 64])?, queues[1].upload(&[1.0f32; 64])?];
        queues[1].finish()?;
        for round in 0..20 {
            let (to, from) = (round % 2, 1 - round % 2);
            let copy = queues[to].memory(256)?;
            queues[to].copy(copy.all(), numbers[from].all())?;
            launch::reduce(&queues[to], DType::F32, ReduceOp::Sum, numbers[to].all(), copy.all())?;
            let mark = queues[to].record()?;
            queues[from].wait(&mark)?;
        }
        // Fibonacci numbers: each side adds the other side's number.
        let held =
            [queues[0].download::<f32>(numbers[0].all())?, queues[1].download::<f32>(numbers[1].all())?];
        ensure(held == [vec![10_946.0; 64], vec![17_711.0; 64]], (held[0][0], held[1][0]))
    });
}

#[test]
fn a_feed_takes_turns_and_a_pool_goes_round() {
    alone("rules::a_feed_takes_turns_and_a_pool_goes_round", "", slow(1), || {
        let queue = Queue::new(Gpu::open()?, 0)?.pooled();
        let mut feed = Feed::new(Queue::new(queue.machine().clone(), 0)?);
        let total = queue.upload(&vec![0.0f32; 5000])?;
        for nth in 0..10 {
            let batch = queue.memory(20_000)?;
            feed.send(batch.all(), &vec![nth as f32; 5000])?;
            queue.wait(&feed.queue().record()?)?;
            launch::reduce(&queue, DType::F32, ReduceOp::Sum, total.all(), batch.all())?;
            // The feed overwrites the memory only after the queue that reads the memory is done.
            feed.queue().wait(&queue.record()?)?;
        }
        let held = queue.download::<f32>(total.all())?;
        ensure(held == vec![45.0; 5000], held[0])?;
        ensure(queue.usage().reserved < 3 * 20_480 && standin_live().memory == 2, queue.usage())?;
        drop((feed, total, queue));
        let live = standin_live();
        ensure((live.memory, live.streams) == (0, 0) && live.events <= 4 * live.pinned, live)
    });
}

#[test]
fn a_graph_replays_captured_work_and_its_forks() {
    alone("rules::a_graph_replays_captured_work_and_its_forks", "", slow(1), || {
        let gpu = Gpu::open()?;
        let (main, side) = (Queue::new(gpu.clone(), 0)?, Queue::new(gpu.clone(), 0)?);
        let (a, b) = (main.upload(&[1.0f32; 300])?, main.upload(&[2.0f32; 300])?);
        launch::reduce(&main, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
        main.finish()?;
        gpu.begin_capture(main.stream())?;
        let fork = main.record()?;
        side.wait(&fork)?;
        launch::reduce(&side, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
        let join = side.record()?;
        main.wait(&join)?;
        launch::reduce(&main, DType::F32, ReduceOp::Sum, b.all(), a.all())?;
        let graph = gpu.end_capture(main.stream())?;
        ensure(main.download::<f32>(a.all())?[0] == 3.0, "a capture runs nothing")?;
        for _ in 0..3 {
            // SAFETY: both buffers are alive.
            unsafe { gpu.replay(main.stream(), graph)? };
        }
        // The graph computes a += b, b += a: three times from 3 and 2.
        ensure(main.download::<f32>(a.all())? == [31.0; 300], "31")?;
        ensure(main.download::<f32>(b.all())? == [50.0; 300], "50")?;
        gpu.forget(graph);
        drop((fork, join));
        ensure(standin_live().graphs == 0 && standin_live().events <= 1, standin_live())?;
        // SAFETY: the replay is refused, so no memory is accessed.
        let gone = refused(unsafe { gpu.replay(main.stream(), graph) });
        ensure(gone.contains("was destroyed"), gone)
    });
}

#[test]
fn captures_are_refused_as_the_driver_refuses_them() {
    alone("rules::captures_are_refused_as_the_driver_refuses_them", "", slow(1), || {
        let gpu = Gpu::open()?;
        let queue = || Queue::new(gpu.clone(), 0);
        let begin = |queue: &Queue| gpu.begin_capture(queue.stream());
        let end = |queue: &Queue| gpu.end_capture(queue.stream());
        let memory = queue()?.memory(64)?;

        let (main, side) = (queue()?, queue()?);
        let outside = side.record()?;
        begin(&main)?;
        let isolated = refused(main.wait(&outside));
        ensure(isolated.contains("STREAM_CAPTURE_ISOLATION"), isolated)?;
        let spoilt = refused(end(&main));
        ensure(spoilt.contains("STREAM_CAPTURE_INVALIDATED"), spoilt)?;

        begin(&main)?;
        let fork = main.record()?;
        side.wait(&fork)?;
        side.fill(memory.all(), 1)?;
        let unjoined = refused(end(&main));
        ensure(unjoined.contains("STREAM_CAPTURE_UNJOINED"), unjoined)?;

        begin(&main)?;
        let fork = main.record()?;
        let captured = refused(gpu.synchronize(fork.event()));
        ensure(captured.contains("CAPTURED_EVENT"), captured)?;
        side.wait(&fork)?;
        let unmatched = refused(end(&side));
        ensure(unmatched.contains("STREAM_CAPTURE_UNMATCHED"), unmatched)?;
        refused(end(&main));

        begin(&main)?;
        let asked = refused(gpu.idle(main.stream()));
        ensure(asked.contains("STREAM_CAPTURE_UNSUPPORTED"), asked)?;
        refused(end(&main));

        begin(&main)?;
        begin(&side)?;
        let merged = refused(main.wait(&side.record()?));
        ensure(merged.contains("STREAM_CAPTURE_MERGE"), merged)?;
        refused(end(&main));
        refused(end(&side));
        main.fill(memory.all(), 3)?;
        ensure(main.download::<u8>(memory.all())? == [3; 64], "the stream is of use again")
    });
}

#[test]
fn memory_is_given_back_when_it_is_idle_and_never_used_again() {
    alone("rules::memory_is_given_back_when_it_is_idle_and_never_used_again", "", slow(1), || {
        let gpu = Gpu::open()?;
        let queue = Queue::new(gpu.clone(), 0)?;
        for _ in 0..20 {
            let (a, b) = (queue.upload(&[1.0f32; 2000])?, queue.upload(&[2.0f32; 2000])?);
            launch::reduce(&queue, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
            // Both buffers are dropped before the kernel runs: freeing them waits for the kernel.
        }
        queue.finish()?;
        ensure(standin_violations().is_empty() && standin_live().memory == 0, standin_live())?;

        // A graph that is replayed after its memory was freed.
        let (a, b) = (queue.upload(&[1.0f32; 2000])?, queue.upload(&[2.0f32; 2000])?);
        gpu.begin_capture(queue.stream())?;
        launch::reduce(&queue, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
        let graph = gpu.end_capture(queue.stream())?;
        drop(b);
        // SAFETY: the memory is the stand-in's, which never reuses addresses and detects the access.
        unsafe { gpu.replay(queue.stream(), graph)? };
        let (first, again) = (refused(queue.finish()), refused(queue.memory(8)));
        ensure(first.contains("ILLEGAL_ADDRESS") && again.contains("ILLEGAL_ADDRESS"), (first, again))?;
        let noted = standin_violations();
        ensure(noted.len() == 1 && noted[0].contains("reduce_sum_f32"), noted)
    });
}
