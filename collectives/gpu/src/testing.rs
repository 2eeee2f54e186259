//! The conformance cases on devices: ranks as buffers of one machine, and ranks over NCCL.
//!
//! ```text
//! device, messages    every step as copies and reductions, captured as a graph; run twice
//! device, fused       one kernel over all buffers
//! NCCL, scheduled     the schedule over grouped sends and receives, a thread for each rank
//! NCCL, native        NCCL's own collective, if the order of the reduction does not affect the bits
//! ```
//!
//! On the shim, the NCCL stand-in replaces the library, so that all code of this crate runs. On GPUs the real library is used, if
//! it is installed and supports that many ranks.

use crate::Result as DeviceResult;
use crate::device::{DeviceCollective, DeviceRanks, ExecutionMode};
use crate::nccl::{self, NcclComm, StandIn, stand_in};
use crate::registry::{Algorithm, Shape};
use crate::schedule::{Schedule, Segments};
use crate::{Collective, Communicator, DType, Element, Error, Geometry, Rank, ReduceOp, World};
use allfold_collectives::testing::{Case, ConformanceFailure, Exact, extent, fixed};
use allfold_cuda::{CudaMachine, Memory, Queue, Slice};
use allfold_kernels::for_dtype;
use allfold_standin::Shim;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How long ranks wait for each other.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs the cases of [`allfold_collectives::testing::conforms`] (the same rank counts, sizes and types) for each algorithm on the
/// devices of a machine and over NCCL.
///
/// # Errors
/// The first check that fails.
pub fn conforms_on(
    machine: &Arc<dyn CudaMachine>,
    algorithms: &'static [Algorithm],
) -> Result<(), ConformanceFailure> {
    let all = || algorithms.iter().flat_map(|algorithm| fixed(algorithm).map(move |case| (algorithm, case)));
    for (algorithm, case) in all() {
        for_dtype!(case.dtype, on_devices(machine, algorithm, &case))?;
    }
    // Joining NCCL takes longer than running a case, so ranks join once for each number of ranks.
    let counts: BTreeSet<u32> = all().map(|(_, case)| case.ranks).collect();
    counts.into_iter().try_for_each(|ranks| {
        let jobs: Vec<_> = all().filter(|(_, case)| case.ranks == ranks).collect();
        over_nccl(machine, ranks, &jobs)
    })
}

/// Runs a case on the devices of a machine, in both forms, and over NCCL.
///
/// # Errors
/// An error of a rank, or the first element that is not exactly the expected one.
pub fn runs_on(
    machine: &Arc<dyn CudaMachine>,
    algorithm: &'static Algorithm,
    case: &Case,
) -> Result<(), ConformanceFailure> {
    for_dtype!(case.dtype, on_devices(machine, algorithm, case))?;
    over_nccl(machine, case.ranks, &[(algorithm, *case)])
}

/// The case for an algorithm: a barrier has no data.
fn emptied(algorithm: &Algorithm, case: &Case) -> Case {
    let count = if algorithm.collective == Collective::Barrier { 0 } else { case.count };
    Case { count, ..*case }
}

fn on_devices<T: Element>(
    machine: &Arc<dyn CudaMachine>,
    algorithm: &'static Algorithm,
    case: &Case,
) -> Result<(), ConformanceFailure> {
    let case = &emptied(algorithm, case);
    let exact = Exact::<T>::new(algorithm, case)?;
    for (place, mode) in
        [("devices, by messages", ExecutionMode::Messages), ("devices, fused", ExecutionMode::Fused)]
    {
        match twice(machine, algorithm, case, &exact.inputs, mode) {
            // A collective that only moves values has no tree, so the fused form may refuse it.
            Err(Error::Argument(_)) if mode == ExecutionMode::Fused && !algorithm.collective.reduces() => {}
            Err(error) => return Err(exact.failed(place, error)),
            Ok(times) => times.iter().try_for_each(|results| exact.holds(place, results))?,
        }
    }
    Ok(())
}

/// The number of segments for which no segment is larger than the case's limit.
fn segments(case: &Case, schedule: &dyn Schedule, total: usize) -> u32 {
    let chunk = (total as u64).div_ceil(u64::from(schedule.chunks()));
    let pieces = case.segment.map_or(1, |bytes| (chunk * case.dtype.size() as u64).div_ceil(bytes));
    pieces.clamp(1, chunk.max(1)) as u32
}

fn failed(error: allfold_cuda::Error) -> Error {
    Error::System(error.to_string())
}

/// The results of all ranks after the first run and after the second one, which replays the graph.
fn twice<T: Element>(
    machine: &Arc<dyn CudaMachine>,
    algorithm: &'static Algorithm,
    case: &Case,
    inputs: &[Vec<T>],
    mode: ExecutionMode,
) -> DeviceResult<[Vec<Vec<T>>; 2]> {
    let mut group = DeviceRanks::new(machine.clone(), case.ranks)?;
    let plain = algorithm.build(Shape::new(case.ranks)?.rooted(case.root)?)?;
    let segments = segments(case, &*plain, inputs.first().map_or(0, Vec::len));
    let job = DeviceCollective { algorithm, root: case.root, dtype: T::DTYPE, op: case.op, mode, segments };
    let allocate = |(rank, input): (u32, &Vec<T>)| {
        group.queue(Rank(rank))?.memory(size_of_val(&input[..])).map_err(failed)
    };
    let memories = (0..).zip(inputs).map(allocate).collect::<DeviceResult<Vec<Memory>>>()?;
    let slices: Vec<Slice<'_>> = memories.iter().map(Memory::all).collect();
    let mut times = [Vec::new(), Vec::new()];
    for results in &mut times {
        for (slice, input) in slices.iter().zip(inputs) {
            group.main().write(*slice, input).map_err(failed)?;
        }
        group.run(&job, &slices)?;
        for (rank, slice) in (0..).map(Rank).zip(&slices) {
            let data = group.main().download(*slice).map_err(failed)?;
            results.push(data[extent(algorithm.collective, case).output(rank)].to_vec());
        }
    }
    Ok(times)
}

fn is_gpu(machine: &Arc<dyn CudaMachine>) -> bool {
    Shim::of(machine.as_ref()).is_none()
}

/// Whether NCCL, or the NCCL stand-in, supports `ranks` ranks on this machine.
fn reachable(machine: &Arc<dyn CudaMachine>, ranks: u32) -> bool {
    if !is_gpu(machine) {
        // On the shim, ranks may share devices, and another test covers connections.
        stand_in(machine, StandIn { shares: true, connects: false, ..StandIn::default() });
        return true;
    }
    // Several ranks on one GPU need NCCL 2.30 and a variable that allows it.
    let shared = || std::env::var_os("NCCL_MULTI_RANK_GPU_ENABLE").is_some();
    let enough = ranks as usize <= machine.devices();
    nccl::version().is_ok_and(|version| enough || version >= (2, 30, 0) && shared())
}

/// Runs every job on a communicator of `ranks` ranks: by its schedule, and by NCCL's own collective if its bits are determined.
fn over_nccl(
    machine: &Arc<dyn CudaMachine>,
    ranks: u32,
    jobs: &[(&'static Algorithm, Case)],
) -> Result<(), ConformanceFailure> {
    let Some((first, case)) = jobs.first().filter(|_| reachable(machine, ranks)) else { return Ok(()) };
    let found = World::threads(ranks).deadline(DEADLINE).run(|control: Communicator| {
        let place = (control.rank(), control.size());
        let queue =
            Queue::new(machine.clone(), place.0.index() % machine.devices()).map_err(failed)?.pooled();
        let mut comm = NcclComm::join(queue, place, Box::new(control), DEADLINE, true)?;
        // A rank continues after a wrong result, because the other ranks wait for it.
        let mut found = Ok(());
        for (algorithm, case) in jobs {
            let case = emptied(algorithm, case);
            found = found.and(for_dtype!(case.dtype, one(&mut comm, algorithm, &case))?);
        }
        comm.finalize()?;
        Ok::<_, Error>(found)
    });
    match found {
        Ok(found) => found.into_iter().collect(),
        Err(error) => {
            Err(ConformanceFailure::new(first, ranks, format!("{case:?} or a later one, over NCCL: {error}")))
        }
    }
}

/// Runs one rank's part of a job; returns whether its result is the expected one.
fn one<T: Element>(
    comm: &mut NcclComm,
    algorithm: &'static Algorithm,
    case: &Case,
) -> DeviceResult<Result<(), ConformanceFailure>> {
    let exact = match Exact::<T>::new(algorithm, case) {
        Ok(exact) => exact,
        Err(failure) => return Ok(Err(failure)),
    };
    let (rank, queue) = (comm.rank(), comm.queue().clone());
    let input = &exact.inputs[rank.index()];
    let plain = algorithm.build(Shape::new(case.ranks)?.rooted(case.root)?)?;
    let pieces = segments(case, &*plain, input.len());
    let schedule: Arc<dyn Schedule> = if pieces > 1 { Arc::new(Segments::new(plain, pieces)) } else { plain };
    let geometry = match algorithm.collective.blocked() {
        true => Geometry::blocked(&schedule, case.count as u64),
        false => Geometry::whole(&schedule, case.count as u64),
    };
    let data = queue.upload(input).map_err(failed)?;
    let divide = algorithm.collective.reduces() && case.op == ReduceOp::Avg;
    nccl::run_scheduled(comm, rank, &*schedule, &geometry, (T::DTYPE, case.op), divide, data.all())?;
    comm.wait("finish a schedule")?;
    let ended: Vec<T> = queue.download(data.all()).map_err(failed)?;
    let scheduled = ended[extent(algorithm.collective, case).output(rank)].to_vec();
    let mut found = exact.rank_holds("NCCL's messages", rank, &scheduled);
    if promised(algorithm.collective, T::DTYPE, case.op) {
        let own = native(comm, algorithm.collective, case, input)?;
        found = found.and(exact.rank_holds("NCCL's own", rank, &own));
    }
    Ok(found)
}

/// Whether every order of reduction gives the same bits, and NCCL has the collective and the type.
fn promised(collective: Collective, dtype: DType, op: ReduceOp) -> bool {
    let integer = matches!(dtype, DType::I8 | DType::I32 | DType::I64 | DType::U8);
    nccl::has(collective) && (!collective.reduces() || integer && op != ReduceOp::Avg)
}

fn native<T: Element>(
    comm: &mut NcclComm,
    collective: Collective,
    case: &Case,
    input: &[T],
) -> DeviceResult<Vec<T>> {
    let (queue, rank) = (comm.queue().clone(), comm.rank());
    let data = queue.upload(input).map_err(failed)?;
    let out = queue.upload(input).map_err(failed)?;
    let extent = extent(collective, case);
    // A rank without input or output still passes a buffer.
    let all = |of: Range<usize>| if of.is_empty() { 0..extent.whole() } else { of };
    let input = part::<T>(&data, all(extent.input(rank)))?;
    let output = part::<T>(&out, all(extent.output(rank)))?;
    let (root, op, dtype) = (case.root, case.op, T::DTYPE);
    comm.collective(nccl::NcclCall { collective, dtype, op, root, input, output })?;
    comm.wait("finish a collective")?;
    let ended: Vec<T> = queue.download(out.all()).map_err(failed)?;
    Ok(ended[extent.output(rank)].to_vec())
}

/// A range of elements of a buffer.
fn part<T>(memory: &Memory, of: Range<usize>) -> DeviceResult<Slice<'_>> {
    memory.all().part(of.start * size_of::<T>(), of.len() * size_of::<T>()).map_err(failed)
}
