//! The machine's own limit: how fast its memory copies and adds, measured in the same run as the figures that are compared with
//! it.

use allfold_cli::error::CommandResult;
use allfold_cli::memory;
use allfold_kernels as kernels;
use allfold_report::records::Limit;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// Elements that a thread reduces at a time where ranks share memory: few enough for the first-level cache.
const BLOCK: usize = 512;

/// The number of threads that this machine runs at once.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

/// What an all-reduce (f32) of `bytes` over `ranks` ranks that share memory could do at best, in GB/s of one rank's
/// buffer: `threads` threads reduce their share of every buffer into the first and copy it to the others, block by
/// block, with neither protocol nor tree. The best of a few rounds.
///
/// # Errors
/// There is not enough memory for the buffers.
pub fn fused(threads: u32, ranks: u32, bytes: u64) -> CommandResult<f64> {
    memory::require(bytes.checked_mul(u64::from(ranks)), "the buffers that measure the machine's limit")?;
    let share = (bytes / 4 / u64::from(threads)).max(1) as usize;
    let buffers = || (0..ranks).map(|rank| vec![rank as f32; share]).collect::<Vec<_>>();
    let times = ((16 << 20) / bytes.max(1)).clamp(1, 4096);
    let all_reduce = |buffers: &mut Vec<Vec<f32>>| {
        let Some((first, others)) = buffers.split_first_mut() else { return };
        for at in (0..share).step_by(BLOCK) {
            let range = at..share.min(at + BLOCK);
            let sum = &mut first[range.clone()];
            others
                .iter()
                .for_each(|other| kernels::reduce(kernels::ReduceOp::Sum, sum, &other[range.clone()]));
            others.iter_mut().for_each(|other| copy(&mut other[range.clone()], sum));
        }
    };
    let seconds = best(threads, buffers, |buffers| (0..times).for_each(|_| all_reduce(black_box(buffers))));
    Ok(4.0 * share as f64 * f64::from(threads) * times as f64 / seconds / 1e9)
}

/// Copies as the collectives do: the C library's copy is slow on some processors.
fn copy(into: &mut [f32], from: &[f32]) {
    kernels::copy_large(bytemuck::cast_slice_mut(into), bytemuck::cast_slice(from));
}

/// Measures copying and `a += b` (f32) with `threads` threads at once, each over buffers of its own of `bytes`;
/// the best of a few rounds.
///
/// # Errors
/// There is not enough memory for the buffers.
pub fn measure(threads: u32, bytes: u64) -> CommandResult<Limit> {
    memory::require(
        bytes.checked_mul(2 * u64::from(threads)),
        "the buffers that measure the machine's limit",
    )?;
    let elements = (bytes / 4).max(1) as usize;
    let each = || (vec![1.0f32; elements], vec![2.0f32; elements]);
    // Small buffers are processed many times between two clock readings, which cost about a microsecond each.
    let times = ((16 << 20) / bytes.max(1)).clamp(1, 4096);
    let copy = best(threads, each, |(a, b)| (0..times).for_each(|_| copy(black_box(&mut *a), black_box(b))));
    let add = |a: &mut [f32], b: &[f32]| kernels::reduce(kernels::ReduceOp::Sum, a, b);
    let add = best(threads, each, |(a, b)| (0..times).for_each(|_| add(black_box(&mut *a), black_box(b))));
    let moved = 4.0 * elements as f64 * f64::from(threads) * times as f64;
    Ok(Limit {
        threads,
        bytes,
        copy_gbps: moved / copy / 1e9,
        reduce_gbps: moved / add / 1e9,
        fused_gbps: None,
    })
}

/// Seconds from a common start until the last thread is done; the least of the rounds.
#[allow(clippy::disallowed_methods, reason = "real time is what is measured")]
fn best<B: Send>(threads: u32, make: impl Fn() -> B + Sync, work: impl Fn(&mut B) + Sync) -> f64 {
    const ROUNDS: usize = 7;
    let barrier = Barrier::new(threads as usize);
    let one = || {
        let mut buffers = make();
        let times = (0..ROUNDS).map(|_| {
            barrier.wait();
            let start = Instant::now();
            work(&mut buffers);
            black_box(&buffers);
            barrier.wait();
            start.elapsed().as_secs_f64()
        });
        times.collect::<Vec<f64>>()
    };
    let all: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let round = |at: usize| all.iter().filter_map(|times| times.get(at)).copied().fold(0.0, f64::max);
    // The first round also pays for touching the pages.
    (1..ROUNDS).map(round).fold(f64::INFINITY, f64::min).max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_all_reduce_in_shared_memory_has_a_limit() {
        let limit = fused(2, 3, 1 << 16).unwrap();
        assert!(limit > 0.0 && limit < 1e6, "{limit}");
    }

    #[test]
    fn copying_and_adding_have_a_rate() {
        let limit = measure(2, 1 << 16).unwrap();
        assert!(limit.copy_gbps > 0.0 && limit.copy_gbps < 1e6, "{limit:?}");
        assert!(limit.reduce_gbps > 0.0 && limit.reduce_gbps < 1e6, "{limit:?}");
    }
}
