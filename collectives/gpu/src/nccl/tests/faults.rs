//! The fault matrix on GPUs: faults of ranks over NCCL (native and scheduled) and between devices. Every rank must return with the
//! right result, or with an error that names a rank, the operation and the cause.

use super::*;
use crate::device::{DeviceGroup, ReducePath};
use std::sync::mpsc;

/// The deadline of ranks on their device (`DEADLINE`), and the delay of a slow rank (`SLOW`).
const DEADLINE: Duration = Duration::from_millis(2500);
const SLOW: Duration = Duration::from_millis(300);
/// The time after which a test counts as hanging.
const HANG: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Rank 1 dies before the first sum.
    DeadFirst,
    /// Rank 1 dies before the third sum.
    DeadLater,
    /// Rank 1 dies while captured sums are replayed.
    DeadInReplay,
    /// Rank 1 is slow, but within the deadline.
    Slow,
    /// Rank 1 begins the second sum after the other ranks' deadline.
    Late,
    /// Rank 1 passes another count.
    OtherCount,
    /// Rank 1 passes another operator.
    OtherOperator,
    /// Rank 1 passes another type with the same number of bytes.
    OtherType,
}

const FAULTS: [Fault; 8] = [
    Fault::DeadFirst,
    Fault::DeadLater,
    Fault::DeadInReplay,
    Fault::Slow,
    Fault::Late,
    Fault::OtherCount,
    Fault::OtherOperator,
    Fault::OtherType,
];

/// The outcome of a rank.
#[derive(Debug)]
enum Came {
    Right,
    Wrong(f32),
    Told(Error),
}

#[allow(clippy::disallowed_methods, reason = "a rank is slow in real time")]
fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Sums a buffer, of ones at first, over all ranks in place three times, with `fault` on rank 1. Returns the first element (27 for
/// 3 ranks), or `None` if the rank has died.
fn rank(
    comm: &crate::Communicator,
    machine: &Arc<dyn CudaMachine>,
    way: ReducePath,
    fault: Fault,
) -> Result<Option<f32>> {
    let me = comm.rank();
    let odd = me == Rank(1);
    let compute = queue(machine, me.0);
    let mut link = DeviceGroup::open(comm, queue(machine, me.0), way, DEADLINE)?;
    let data = compute.upload(&[1.0f32; 8]).unwrap();
    let mut graph = None;
    let result = (0..3).try_for_each(|nth| {
        match (fault, nth) {
            (Fault::DeadFirst, 0) | (Fault::DeadLater, 2) | (Fault::DeadInReplay, 2) if odd => {
                return Err(Error::Poisoned { cause: "dies".into() });
            }
            (Fault::Slow, 1) if odd => sleep(SLOW),
            (Fault::Late, 1) if odd => sleep(DEADLINE + 4 * SLOW),
            _ => {}
        }
        let (mut dtype, mut op, mut part) = (DType::F32, ReduceOp::Sum, data.all());
        if odd && nth == 1 {
            match fault {
                Fault::OtherCount => part = data.all().part(0, 16).unwrap(),
                Fault::OtherOperator => op = ReduceOp::Max,
                Fault::OtherType => (dtype, part) = (DType::F64, data.all()),
                _ => {}
            }
        }
        let replays = fault == Fault::DeadInReplay && link.captures() && nth > 0;
        if !replays {
            link.all_reduce(&compute, dtype, op, part)?;
            link.join(&compute)?;
            return link.wait(&compute, &format!("finish sum {nth}"));
        }
        if graph.is_none() {
            machine.begin_capture(compute.stream()).unwrap();
            let given = link.all_reduce(&compute, dtype, op, part).and_then(|()| link.join(&compute));
            let made = machine.end_capture(compute.stream());
            given?;
            graph = Some(made.unwrap());
        }
        if let Some(graph) = graph {
            // SAFETY: the buffer lives until the graph is forgotten.
            unsafe { machine.replay(compute.stream(), graph) }.unwrap();
        }
        link.wait(&compute, &format!("finish replay {nth}"))
    });
    // The order is required: first the graphs are destroyed, then the rank aborts, then memory is freed.
    if let Some(graph) = graph {
        machine.forget(graph);
    }
    if let Err(error) = result {
        link.abandon("the test ends it");
        return if error == (Error::Poisoned { cause: "dies".into() }) { Ok(None) } else { Err(error) };
    }
    Ok(Some(compute.download::<f32>(data.all()).unwrap()[0]))
}

/// The outcome of every rank that has not died; `None` if a rank hangs.
fn run(way: ReducePath, fault: Fault, lost: PeerLoss) -> Option<Vec<Came>> {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let tells_mismatch = true;
        let machine = shim(3, &[], StandIn { lost, tells_mismatch, ..StandIn::default() });
        let world = World::threads(3).deadline(DEADLINE);
        let report = world.run_each(|comm| rank(&comm, &machine, way, fault)).unwrap();
        let came = report.ranks.into_iter().filter_map(|result| match result {
            Ok(None) => None,
            Ok(Some(27.0)) => Some(Came::Right),
            Ok(Some(other)) => Some(Came::Wrong(other)),
            Err(error) => Some(Came::Told(error)),
        });
        let _ = done.send(came.collect());
    });
    wait.recv_timeout(HANG).ok()
}

/// Whether an error names a rank, the operation and the cause.
fn names(error: &Error) -> bool {
    let text = error.to_string();
    let who = ["rank 0", "rank 1", "rank 2", "ranks 0", "ranks 1"].iter().any(|rank| text.contains(rank));
    let operation =
        ["sum", "replay", "all-reduce", "all_reduce", "all_gather", "join", "schedule", "send", "exchange"];
    let cause =
        ["deadline", "failed or left", "disagree", "lost", "here and", "returned early", "failed before"];
    let said = |words: &[&str]| words.iter().any(|word| text.contains(word));
    who && said(&operation) && said(&cause)
}

#[test]
fn the_fault_matrix_has_no_hang_no_wrong_result_and_no_unnamed_error() {
    let ways = [
        ("native", ReducePath::Nccl, PeerLoss::Told),
        ("native, silent", ReducePath::Nccl, PeerLoss::Silent),
        ("scheduled", ReducePath::Scheduled, PeerLoss::Told),
        ("scheduled, silent", ReducePath::Scheduled, PeerLoss::Silent),
        ("device", ReducePath::Device, PeerLoss::Told),
    ];
    let (mut hangs, mut wrong, mut unnamed, mut cases) = (0, 0, 0, 0);
    let all: Vec<_> = FAULTS.iter().flat_map(|fault| ways.map(|way| (*fault, way))).collect();
    // Each case waits for its own deadlines; the cases of three faults do so at the same time.
    for some in all.chunks(3 * ways.len()) {
        let came: Vec<_> = std::thread::scope(|scope| {
            let start = |(fault, (_, way, lost))| scope.spawn(move || run(way, fault, lost));
            let runs: Vec<_> = some.iter().copied().map(start).collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        for ((fault, (name, ..)), came) in some.iter().copied().zip(came) {
            cases += 1;
            let Some(came) = came else {
                hangs += 1;
                println!("{fault:<15?} {name:<18} HANGS");
                continue;
            };
            let right = came.iter().filter(|came| matches!(came, Came::Right)).count();
            let told: Vec<&Error> = came
                .iter()
                .filter_map(|came| if let Came::Told(error) = came { Some(error) } else { None })
                .collect();
            for sum in
                came.iter().filter_map(|came| if let Came::Wrong(sum) = came { Some(sum) } else { None })
            {
                wrong += 1;
                println!("WRONG {sum}");
            }
            let nameless: Vec<_> = told.iter().filter(|error| !names(error)).collect();
            unnamed += nameless.len();
            nameless.iter().for_each(|error| println!("UNNAMED {error}"));
            // Only with a slow rank are the sums right.
            if (fault == Fault::Slow) != (right == came.len()) {
                println!("{fault:?} {name}: {came:?}");
                wrong += 1;
            }
            let first = told.first().map_or("all right".into(), ToString::to_string);
            println!("{fault:<15?} {name:<18} {right} right, {} told: {first}", told.len());
        }
    }
    println!("{cases} cases: hangs {hangs}, wrong {wrong}, unnamed {unnamed}");
    assert_eq!((hangs, wrong, unnamed), (0, 0, 0));
}
