//! Tests of the driver's rules as the shim enforces them: order between streams, captures, memory, waits.

use super::{Foreign, Poll, Progress, Shim, ShimOptions};
use allfold_cuda::{Memory, MemoryAccess, Queue, Result, Slice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn queues<const N: usize>(options: ShimOptions) -> [Queue; N] {
    let machine = Shim::with(options).unwrap();
    std::array::from_fn(|at| Queue::new(machine.clone(), at % options.devices).unwrap())
}

/// Queues foreign work that ends when `until` becomes true.
fn held(on: &Queue, until: &Arc<AtomicBool>, touches: Slice<'_>) {
    let until = until.clone();
    let start = move |_: bool| -> Poll {
        let until = until.clone();
        Box::new(move || if until.load(Ordering::SeqCst) { Progress::Done } else { Progress::Busy })
    };
    let access = MemoryAccess { address: touches.address(), bytes: touches.len() as u64, write: true };
    let foreign =
        Foreign { name: "held", accesses: vec![access], start: Arc::new(start), graphs: Arc::new(()) };
    Shim::of(on.machine().as_ref()).unwrap().give_foreign(on.stream(), foreign).unwrap();
}

fn text<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_copy_on_another_stream_needs_an_event() {
    let [a, b] = queues(ShimOptions::default());
    let (x, y) = (a.memory(64).unwrap(), b.memory(64).unwrap());
    a.fill(x.all(), 1).unwrap();
    assert!(text(b.copy(y.all(), x.all())).contains("a race: a copy on stream 1 reads 64 bytes that a fill"));

    let [a, b] = queues(ShimOptions::default());
    let (x, y) = (a.memory(64).unwrap(), b.memory(64).unwrap());
    a.fill(x.all(), 1).unwrap();
    b.wait(&a.record().unwrap()).unwrap();
    b.copy(y.all(), x.all()).unwrap();
    // In the other direction, no event orders the two streams yet.
    assert!(text(a.fill(x.all(), 2)).contains("a race"));
    b.finish().unwrap();
    a.fill(x.all(), 2).unwrap();
}

#[test]
fn work_behind_foreign_work_waits_across_streams() {
    let [a, b] = queues(ShimOptions::default());
    let (x, y) = (a.upload(&[1u8; 8]).unwrap(), a.upload(&[2u8; 8]).unwrap());
    let go = Arc::new(AtomicBool::new(false));
    held(&a, &go, x.all());
    a.write(x.all(), &[7u8; 8]).unwrap();
    b.wait(&a.record().unwrap()).unwrap();
    b.copy(y.all(), x.all()).unwrap();
    assert_eq!(a.machine().idle(b.stream()), Ok(false));
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| b.download::<u8>(y.all()).unwrap());
        go.store(true, Ordering::SeqCst);
        assert_eq!(reads.join().unwrap(), [7; 8]);
    });
}

#[test]
fn a_wait_of_the_host_that_never_ends_is_an_error() {
    let [a] = queues(ShimOptions { timeout: Duration::from_millis(20), ..ShimOptions::default() });
    let x = a.memory(8).unwrap();
    held(&a, &Arc::default(), x.all());
    assert!(text(a.finish()).contains("a hang"));
    assert!(text(a.download::<u8>(x.all())).contains("a hang"));
    // Memory that is dropped while in use is not freed, and the next fill, copy or launch returns the error.
    drop(x);
    assert!(text(a.memory(8).and_then(|y| a.fill(y.all(), 0))).contains("give memory back: a hang"));
}

#[test]
fn a_fork_that_is_joined_is_captured_and_replayed_in_order() {
    let [main, other] = queues(ShimOptions::default());
    let machine = main.machine().clone();
    let (x, y) = (main.upload(&[1u8; 8]).unwrap(), main.upload(&[2u8; 8]).unwrap());
    main.finish().unwrap();
    machine.begin_capture(main.stream()).unwrap();
    other.wait(&main.record().unwrap()).unwrap();
    other.copy(y.all(), x.all()).unwrap();
    main.wait(&other.record().unwrap()).unwrap();
    main.fill(x.all(), 9).unwrap();
    let graph = machine.end_capture(main.stream()).unwrap();
    assert_eq!(main.download::<u8>(y.all()).unwrap(), [2; 8], "a capture runs nothing");
    let replay = || {
        // SAFETY: both buffers are alive.
        unsafe { machine.replay(main.stream(), graph) }.unwrap();
        (main.download::<u8>(x.all()).unwrap(), main.download::<u8>(y.all()).unwrap())
    };
    assert_eq!(replay(), (vec![9; 8], vec![1; 8]));
    assert_eq!(replay(), (vec![9; 8], vec![9; 8]));
    machine.forget(graph);
    // SAFETY: both buffers are alive; the replay of a destroyed graph is refused.
    assert!(text(unsafe { machine.replay(main.stream(), graph) }).contains("was destroyed"));
    // The streams of replays are gone when the replays have ended.
    assert_eq!(Shim::of(machine.as_ref()).unwrap().live(), (2, 0));
}

#[test]
fn a_race_within_a_graph_is_found_when_it_is_launched() {
    let [main, other] = queues(ShimOptions::default());
    let machine = main.machine().clone();
    let (x, y) = (main.memory(8).unwrap(), main.memory(8).unwrap());
    machine.begin_capture(main.stream()).unwrap();
    other.wait(&main.record().unwrap()).unwrap();
    main.fill(x.all(), 1).unwrap();
    other.copy(y.all(), x.all()).unwrap();
    main.wait(&other.record().unwrap()).unwrap();
    let graph = machine.end_capture(main.stream()).unwrap();
    // SAFETY: both buffers are alive.
    assert!(text(unsafe { machine.replay(main.stream(), graph) }).contains("a race"));
}

/// A violated rule, on two streams of which the first is captured: the driver's answer, and the calls.
type Rule = (&'static str, fn(&[Queue; 2], &Memory) -> Result<()>);

const RULES: &[Rule] = &[
    ("ILLEGAL_STATE", |[main, _], _| main.machine().begin_capture(main.stream())),
    ("STREAM_CAPTURE_ISOLATION", |[main, other], _| main.wait(&other.record()?)),
    ("STREAM_CAPTURE_MERGE", |[main, other], _| {
        main.machine().begin_capture(other.stream())?;
        main.wait(&other.record()?)
    }),
    ("STREAM_CAPTURE_UNSUPPORTED", |[main, _], _| main.machine().idle(main.stream()).map(|_| ())),
    ("STREAM_CAPTURE_UNSUPPORTED", |[main, _], _| main.finish()),
    ("STREAM_CAPTURE_UNSUPPORTED", |[main, _], x| main.download::<u8>(x.all()).map(|_| ())),
    ("STREAM_CAPTURE_UNSUPPORTED", |[main, _], x| main.write(x.all(), &[0u8; 8])),
    ("CAPTURED_EVENT", |[main, _], _| main.machine().synchronize(main.record()?.event())),
    ("STREAM_CAPTURE_UNMATCHED", |[main, other], _| {
        other.wait(&main.record()?)?;
        main.machine().end_capture(other.stream()).map(|_| ())
    }),
    ("STREAM_CAPTURE_UNJOINED", |[main, other], x| {
        other.wait(&main.record()?)?;
        other.fill(x.all(), 0)?;
        main.machine().end_capture(main.stream()).map(|_| ())
    }),
    ("STREAM_CAPTURE_INVALIDATED", |[main, _], _| {
        let _ = main.finish();
        main.machine().end_capture(main.stream()).map(|_| ())
    }),
    ("CAPTURED_EVENT", |[main, other], _| {
        let mark = main.record()?;
        main.machine().end_capture(main.stream())?;
        other.wait(&mark)
    }),
];

#[test]
fn captures_are_refused_as_the_driver_refuses_them() {
    for (nth, (answer, breaks)) in RULES.iter().enumerate() {
        let both = queues::<2>(ShimOptions::default());
        let x = both[0].memory(8).unwrap();
        both[0].machine().begin_capture(both[0].stream()).unwrap();
        let error = text(breaks(&both, &x));
        assert!(error.ends_with(&format!("CUDA_ERROR_{answer}")), "rule {nth}: {error}");
    }
}

#[test]
fn kernels_stay_within_the_reach_of_their_device_and_copies_do_not_need_it() {
    let [a, b] = queues(ShimOptions { devices: 2, peers: false, ..ShimOptions::default() });
    let (x, y) = (a.upload(&[1.0f32; 8]).unwrap(), b.upload(&[2.0f32; 8]).unwrap());
    b.finish().unwrap();
    a.copy(x.all(), y.all()).unwrap();
    let sum = |q: &Queue| {
        allfold_cuda::launch::reduce(
            q,
            allfold_kernels::DType::F32,
            allfold_kernels::ReduceOp::Sum,
            x.all(),
            y.all(),
        )
    };
    assert!(text(sum(&a)).contains("CUDA_ERROR_ILLEGAL_ADDRESS: device 0 does not reach"));
    assert!(!a.machine().reaches(0, 1) && a.machine().reaches(1, 1));
}

#[test]
fn too_little_memory_says_how_much_there_is() {
    let [a] = queues(ShimOptions { memory: 1000, ..ShimOptions::default() });
    let _kept = a.memory(600).unwrap();
    assert!(text(a.memory(600)).contains("600 bytes wanted, 400 of 1000 free"));
}
