//! Benchmarks for a GPU machine: kernels compared with a copy, the device backend compared with its least memory traffic, and NCCL
//! called through this crate.
//!
//! A plain program, so that the binary also runs without cargo: `gpu [kernels|device|nccl] [MIB]`. Upper limits are measured first, in
//! the same run. Each line is also written as a JSON record to the file that ALLFOLD_RECORDS names. Without a GPU the program prints SKIP
//! and the reason. The results of collectives are checked: the exit code is 1 if a result is wrong or a part has failed.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use allfold_collectives::registry::of;
use allfold_collectives::{Collective, Communicator, DType, Error, Rank, ReduceOp, World};
use allfold_cuda::launch::{
    self, AdamRule, BatchNormLaunch, BucketLaunch, Param, Params, Saved, TensorLayout,
};
use allfold_cuda::{CudaMachine, Gpu, Memory, Queue, probe};
use allfold_gpu::device::{DeviceCollective, DeviceRanks, ExecutionMode};
use allfold_gpu::nccl::{NcclComm, version};
use allfold_standin::Counter;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const REPEATS: u32 = 20;
/// The number of timed series of NCCL calls, of which the shortest counts, as in `benches/peers/nccl_direct.py`.
const STRETCHES: usize = 5;

fn record(line: &str) {
    if let Some(path) = std::env::var_os("ALLFOLD_RECORDS") {
        let mut file =
            std::fs::OpenOptions::new().create(true).append(true).open(path).expect("ALLFOLD_RECORDS");
        writeln!(file, "{line}").expect("ALLFOLD_RECORDS");
    }
}

/// The rate in GB/s of a body that moves `bytes`: the best of three series of REPEATS calls.
fn gbps<R>(queue: &Queue, bytes: u64, body: impl Fn() -> R) -> f64 {
    let _ = body();
    queue.finish().unwrap();
    let once = || {
        let from = queue.record().unwrap();
        (0..REPEATS).for_each(|_| {
            let _ = body();
        });
        let to = queue.record().unwrap();
        from.until(&to).unwrap().max(1)
    };
    let best = (0..3).map(|_| once()).min().unwrap_or(1);
    f64::from(REPEATS) * bytes as f64 / best as f64
}

fn row(kind: &str, name: &str, bytes: u64, gbps: f64, copy: f64) {
    let share = 100.0 * gbps / copy;
    println!("{kind:<8} {name:<34} {bytes:>14} B {gbps:>9.1} GB/s {share:>6.1} % of a copy");
    record(&format!(
        "{{\"schema\":1,\"kind\":\"gpu_{kind}\",\"measured\":true,\"name\":\"{name}\",\"bytes\":{bytes},\"gbps\":{gbps:.3},\"copy_gbps\":{copy:.3}}}"
    ));
}

fn copy_ceiling(queue: &Queue, bytes: usize) -> f64 {
    let (a, b) = (queue.memory(bytes).unwrap(), queue.memory(bytes).unwrap());
    queue.fill(a.all(), 1).unwrap();
    let speed = gbps(queue, 2 * bytes as u64, || queue.copy(b.all(), a.all()).unwrap());
    row("kernel", "device-to-device copy", 2 * bytes as u64, speed, speed);
    speed
}

fn kernels(queue: &Queue, mib: usize, copy: f64) {
    let bytes = mib << 20;
    let zeroed = |bytes: usize| {
        let memory = queue.memory(bytes).unwrap();
        queue.fill(memory.all(), 0).unwrap();
        memory
    };
    let (a, b, c, d) = (zeroed(bytes), zeroed(bytes), zeroed(bytes), zeroed(bytes));
    let all = bytes as u64;
    // The bytes that a body moves: every operand once, and twice if it is read and written.
    let measured = |name: &str, moved: u64, body: &dyn Fn()| {
        row("kernel", name, moved, gbps(queue, moved, body), copy);
    };
    for dtype in [DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I8] {
        measured(&format!("reduce_sum_{dtype}"), 3 * all, &|| {
            launch::reduce(queue, dtype, ReduceOp::Sum, a.all(), b.all()).unwrap();
        });
    }
    let half = b.all().part(0, bytes / 2).unwrap();
    measured("cast_f32_bf16", all + all / 2, &|| {
        launch::cast(queue, (DType::F32, a.all()), (DType::Bf16, half), 1.0).unwrap();
    });
    let tensors: Vec<_> = (0..16).map(|i| a.all().part(i * (bytes / 16), bytes / 16).unwrap()).collect();
    let bucket = BucketLaunch::new(queue, DType::F32, &tensors).unwrap();
    measured("pack_f32, divided", 2 * all, &|| bucket.pack(queue, b.all(), 8).unwrap());
    let param = Param { param: a.all(), grad: b.all(), master: None, m: Some(c.all()), v: Some(d.all()) };
    let params = Params::new(queue, DType::F32, &[param]).unwrap();
    let rule = AdamRule::new(1, 1e-3, (0.9, 0.999), 1e-8, 0.01, true);
    measured("adamw_f32", 7 * all, &|| {
        launch::adam(queue, &params, rule, launch::StepReads::default()).unwrap();
    });
    let planes = BatchNormLaunch {
        dtype: DType::F32,
        n: bytes / 4 / 64 / 3136,
        channels: 64,
        plane: 3136,
        layout: TensorLayout::Planes,
    };
    let n = planes.n * 64 * 3136 * 4;
    let (x, y) = (a.all().part(0, n).unwrap(), b.all().part(0, n).unwrap());
    let channel = [zeroed(256), zeroed(256), zeroed(256), zeroed(256), zeroed(512)];
    let saved = Saved { means: channel[0].all(), rs: channel[1].all() };
    let last = BatchNormLaunch { layout: TensorLayout::ChannelsLast, ..planes };
    for (shape, layout) in [(planes, ""), (last, ", channels last")] {
        measured(&format!("batch norm, apply{layout}"), 2 * n as u64, &|| {
            shape.apply(queue, x, (channel[2].all(), channel[3].all()), saved, y).unwrap();
        });
        measured(&format!("batch norm, statistics{layout}"), n as u64, &|| {
            shape.statistics(queue, x, channel[4].all(), saved).unwrap();
        });
    }
    measured("turn_f32, planes to channels last", 2 * n as u64, &|| {
        launch::transpose(queue, DType::F32, y, x, (64, 3136)).unwrap();
    });
}

/// The bytes that a collective of buffers of `bytes` bytes reads and writes.
fn counted(job: &DeviceCollective, ranks: u32, bytes: usize) -> u64 {
    let machine = Counter::open();
    let mut group = DeviceRanks::new(machine.clone(), ranks).unwrap();
    let memories: Vec<Memory> = (0..ranks).map(|_| group.main().memory(bytes).unwrap()).collect();
    group.run(job, &memories.iter().map(Memory::all).collect::<Vec<_>>()).unwrap();
    let traffic = Counter::of(&*machine).unwrap().traffic();
    traffic.values().map(|kind| kind.read + kind.written).sum()
}

/// Measures every all-reduce algorithm on 8 ranks; returns whether all results are right.
fn device(machine: &Arc<dyn CudaMachine>, mib: usize, copy: f64) -> bool {
    let ranks = 8;
    let ones = vec![1.0f32; (mib << 20) / 4];
    let mut right = true;
    let mut group = DeviceRanks::new(machine.clone(), ranks).unwrap();
    let memory = |rank| {
        let queue = group.queue(Rank(rank)).unwrap();
        let memory = queue.memory(mib << 20).unwrap();
        queue.fill(memory.all(), 0).unwrap();
        queue.finish().unwrap();
        memory
    };
    let memories: Vec<Memory> = (0..ranks).map(memory).collect();
    let slices: Vec<_> = memories.iter().map(Memory::all).collect();
    for algorithm in of(Collective::AllReduce) {
        for mode in [ExecutionMode::Messages, ExecutionMode::Fused] {
            let (dtype, op) = (DType::F32, ReduceOp::Sum);
            let job = DeviceCollective { algorithm, root: Rank(0), dtype, op, mode, segments: 1 };
            slices.iter().for_each(|slice| group.main().write(*slice, &ones).unwrap());
            group.run(&job, &slices).unwrap();
            let sums: Vec<f32> = group.main().download(slices[ranks as usize - 1]).unwrap();
            if sums.iter().any(|sum| *sum != ranks as f32) {
                println!("FAILED device: {} {mode:?} gave a wrong sum", algorithm.name);
                right = false;
            }
            slices.iter().for_each(|slice| group.main().fill(*slice, 0).unwrap());
            group.main().finish().unwrap();
            let best = (0..REPEATS).map(|_| group.run(&job, &slices).unwrap()).min().unwrap_or_default();
            let moved = counted(&job, ranks, mib << 20);
            let speed = moved as f64 / best.max(1) as f64;
            row("device", &format!("{} {mode:?} 8 ranks", algorithm.name), moved, speed, copy);
        }
    }
    right
}

/// Measures NCCL with one thread per rank; ranks share devices if there are more ranks than devices.
fn nccl(machine: &Arc<dyn CudaMachine>, ranks: u32, mib: usize) -> Result<(), Error> {
    let devices = machine.devices();
    let times = World::threads(ranks).run(|control: Communicator| {
        let rank = control.rank();
        let system = |error: allfold_cuda::Error| Error::System(error.to_string());
        let queue = Queue::new(machine.clone(), rank.index() % devices).map_err(system)?.pooled();
        let (from, to) = (queue.record().map_err(system)?, queue.record().map_err(system)?);
        // One buffer serves all sizes and is freed when all ranks are done, because freeing waits for the whole device.
        let whole = queue.memory(mib << 20).map_err(system)?;
        let barrier = control.split(Some(0), rank.0)?.ok_or_else(|| Error::System("no barrier".into()))?;
        let mut comm =
            NcclComm::join(queue.clone(), (rank, ranks), Box::new(control), Duration::from_secs(60), false)?;
        let mut times = Vec::new();
        for bytes in [8usize, 64 << 10, 1 << 20, 16 << 20, mib << 20] {
            let data = whole.all().part(0, bytes).map_err(system)?;
            queue.write(data, &vec![1.0f32; bytes / 4]).map_err(system)?;
            let estimate = comm
                .estimate(|comm| comm.all_reduce(DType::F32, ReduceOp::Sum, data, data))
                .unwrap_or(f64::NAN);
            // The first call makes connections and is not timed.
            comm.all_reduce(DType::F32, ReduceOp::Sum, data, data)?;
            comm.wait("all-reduce")?;
            let got: Vec<f32> = queue.download(data).map_err(system)?;
            if got.iter().any(|x| *x != ranks as f32) {
                return Err(Error::System(format!("rank {rank} got a wrong sum of {bytes} bytes")));
            }
            queue.fill(data, 0).map_err(system)?;
            let mut stretches = [0.0; STRETCHES];
            for each in &mut stretches {
                // All ranks begin a series together, as in `benches/peers/nccl_direct.py`.
                barrier.barrier()?;
                from.move_to(&queue).map_err(system)?;
                for _ in 0..REPEATS {
                    comm.all_reduce(DType::F32, ReduceOp::Sum, data, data)?;
                }
                to.move_to(&queue).map_err(system)?;
                comm.wait("all-reduce")?;
                *each = from.until(&to).map_err(system)? as f64 / f64::from(REPEATS) / 1e3;
            }
            times.push((bytes, stretches, estimate));
        }
        comm.finalize()?;
        barrier.barrier()?;
        Ok(times)
    })?;
    for (nth, (bytes, _, estimate)) in times[0].iter().enumerate() {
        let slowest = |at: usize| times.iter().map(|rank| rank[nth].1[at]).fold(0.0, f64::max);
        let us = (0..STRETCHES).map(slowest).fold(f64::INFINITY, f64::min);
        let busbw = *bytes as f64 / us / 1e3 * Collective::AllReduce.bus_factor(ranks);
        println!(
            "nccl     all_reduce {ranks} ranks {bytes:>12} B {us:>10.1} us {busbw:>8.2} GB/s bus, NCCL estimates {estimate:.1} us"
        );
        // The estimate is NaN if this NCCL gives no estimate; JSON has no NaN.
        let estimate = if estimate.is_finite() { format!("{estimate:.3}") } else { "null".into() };
        record(&format!(
            "{{\"schema\":1,\"kind\":\"gpu_nccl\",\"measured\":true,\"collective\":\"all_reduce\",\"ranks\":{ranks},\"bytes\":{bytes},\"time_us\":{us:.3},\"busbw_gbps\":{busbw:.3},\"nccl_estimate_us\":{estimate}}}"
        ));
    }
    Ok(())
}

/// Exit code 0, or 1 if a result was wrong or a part failed. A missing GPU or NCCL is not a failure.
fn main() -> ExitCode {
    let mut right = true;
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |part: &str| {
        words.iter().all(|word| word.parse::<usize>().is_ok()) || words.iter().any(|w| w == part)
    };
    let mib = words.iter().find_map(|word| word.parse().ok()).unwrap_or(256usize).clamp(16, 4096);
    let machine = match Gpu::open() {
        Ok(machine) => machine,
        Err(why) => {
            println!("SKIP gpu: {why}");
            return ExitCode::SUCCESS;
        }
    };
    println!("{:?}", probe().unwrap());
    let queue = Queue::new(machine.clone(), 0).unwrap().pooled();
    let copy = copy_ceiling(&queue, mib << 20);
    if wanted("kernels") {
        kernels(&queue, mib, copy);
    }
    if wanted("device") {
        right &= device(&machine, mib, copy);
    }
    if wanted("nccl") {
        match version() {
            Err(why) => println!("SKIP nccl: {why}"),
            Ok(version) => {
                println!("NCCL {version:?}");
                // Several ranks on one GPU need NCCL_MULTI_RANK_GPU_ENABLE=1, and NCCL 2.30 or newer.
                for ranks in [1, 2, 4, 8] {
                    let shared = ranks as usize > machine.devices();
                    if shared
                        && (version < (2, 30, 0) || std::env::var_os("NCCL_MULTI_RANK_GPU_ENABLE").is_none())
                    {
                        println!(
                            "SKIP nccl, {ranks} ranks: more ranks than GPUs need NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1"
                        );
                        continue;
                    }
                    if let Err(why) = nccl(&machine, ranks, mib) {
                        println!("FAILED nccl, {ranks} ranks: {why}");
                        right = false;
                    }
                }
            }
        }
    }
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
