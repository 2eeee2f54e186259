//! Defects of calls of the CUDA driver, on the stand-in for it: each body runs in its own process, since a process has one driver.

use allfold_cuda::{Error, Gpu, Queue, launch};
use allfold_kernels::{DType, ReduceOp};
use allfold_standin::{Gate, StandinOptions, install, standin_live, standin_spin, standin_violations};
use std::process::Command;
use std::time::Duration;

const NAME: &str = "ALLFOLD_GPU_DEFECT";
/// The prefix of a line in which a child process reports an error.
const WRONG: &str = "WRONG ";

/// What a body found wrong.
pub type Found = Result<(), Box<dyn std::error::Error>>;

/// One run of one row of the table of defects.
pub struct Run {
    /// The number of the defect, if it is put back in.
    pub seeded: &'static [u8],
    pub number: u8,
}

/// Whether this is the process of one row.
pub fn is_child() -> bool {
    std::env::var_os(NAME).is_some()
}

impl Run {
    /// Runs a body in a new process on a stand-in with these options. The error is what the body or the stand-in found wrong.
    fn alone(&self, options: StandinOptions, body: impl FnOnce() -> Found) -> Found {
        let name = format!("{} {:?}", self.number, self.seeded);
        if let Ok(this) = std::env::var(NAME) {
            if this == name {
                install(StandinOptions { seeded: self.seeded, ..options })?;
                body().err().iter().for_each(|error| println!("{WRONG}{error}"));
                standin_violations().iter().for_each(|violation| println!("{WRONG}{violation}"));
                println!("DONE");
                std::process::exit(0);
            }
            return Ok(());
        }
        let output = Command::new(std::env::current_exe()?).env(NAME, name).output()?;
        let text =
            [output.stdout, output.stderr].map(|part| String::from_utf8_lossy(&part).into_owned()).concat();
        let wrong: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(WRONG)).collect();
        match wrong.is_empty() {
            true if output.status.success() && text.contains("DONE") => Ok(()),
            true => Err(format!("{}: {text}", output.status).into()),
            false => Err(wrong.join("; ").into()),
        }
    }
}

type Call<'a> = Box<dyn Fn() -> Result<(), Error> + Sync + Send + 'a>;

fn ensure(holds: bool, what: impl std::fmt::Debug) -> Found {
    if holds { Ok(()) } else { Err(format!("{what:?}").into()) }
}

fn sum(queue: &Queue, into: &[f32], from: &[f32]) -> Result<Vec<f32>, Error> {
    let (a, b) = (queue.upload(into)?, queue.upload(from)?);
    launch::reduce(queue, DType::F32, ReduceOp::Sum, a.all(), b.all())?;
    queue.download(a.all())
}

/// Adds data of another device: in place if its memory can be reached, else from a copy.
pub fn d8_peer_access(run: &Run) -> Found {
    let options = StandinOptions { devices: 2, peers: false, ..StandinOptions::default() };
    run.alone(options, || {
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
    })
}

/// Two ranks that are threads: the first loads a kernel after its part of a collective, the second before its own part.
#[allow(clippy::disallowed_methods, reason = "the second rank comes when the first one waits in the driver")]
pub fn d9_loading_beside_a_collective(run: &Run) -> Found {
    let options = StandinOptions { devices: 2, limit: Duration::from_secs(15), ..StandinOptions::default() };
    run.alone(options, || {
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
                std::thread::sleep(Duration::from_secs(2));
                load(1).and_then(|sum| collective(1).map(|()| sum))
            });
            [first.join().unwrap(), second.join().unwrap()]
        });
        let sums = [sums[0].clone()?, sums[1].clone()?];
        ensure(sums == [[1.0], [2.0]], sums)
    })
}

pub fn d14_contexts_are_opened_when_they_are_used(run: &Run) -> Found {
    let options = StandinOptions { devices: 8, taken: &[5], ..StandinOptions::default() };
    run.alone(options, || {
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
    })
}

/// The source is written over as soon as the call returns.
pub fn d15_copies_from_pageable_memory(run: &Run) -> Found {
    let options = StandinOptions { delay: Duration::from_millis(1), ..StandinOptions::default() };
    run.alone(options, || {
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
    })
}

/// Every call from a thread that has no context of its own.
#[allow(unsafe_code, reason = "graphs name memory by address")]
pub fn d18_calls_of_a_new_thread(run: &Run) -> Found {
    let options = StandinOptions { devices: 2, ..StandinOptions::default() };
    run.alone(options, || {
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
            ("synchronize", Box::new(|| gpu.synchronize(from.event()))),
            ("between", Box::new(|| gpu.between(from.event(), to.event()).map(|_| ()))),
            // Another kernel of a loaded family, which is looked up in the cached module.
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
    })
}
