//! Runs one size of a collective on real data, times it, and compares every result with the exact reference.
//!
//! ```text
//! samples --> proof.evaluate -> expected --+
//!    |                                     |== bit for bit
//!    '-> World::run: warm up, time, run --+
//! ```

use crate::call::plan::{CallPlan, Choice};
use crate::measure::inputs::{self, Sample};
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::memory;
use allfold_collectives::check::{self, Proof};
use allfold_collectives::meaning::{On, Portion};
use allfold_collectives::{Buffer, Collective, Communicator, Error, Rank, ReduceOp, World};
use allfold_kernels as kernels;
use allfold_sim::Picos;
use std::sync::Arc;

/// How a size is measured: calls, warm-up, checks.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The number of timings; each is of one call or, of small sizes, of several calls one after another.
    pub iterations: u32,
    /// The number of untimed calls before the timed ones.
    pub warmup: u32,
    /// Whether the results are checked.
    pub check: bool,
    /// The seed of the inputs.
    pub seed: u64,
    /// Whether time is virtual: then a single call from time zero is exact, without a warm-up or a common start.
    pub virtual_time: bool,
    /// Whether buffers are registered, so that ranks that share memory access them in place.
    pub registered: bool,
}

/// The most calls of one size that are timed where no more timings are asked for.
const MOST_CALLS: u64 = 100_000;

/// The result of one side of a table's row, in place or out of place.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredSide {
    /// Whether the result replaced the input in its buffer.
    pub in_place: bool,
    /// Microseconds: the mean over ranks and iterations; on virtual time until the last rank was done.
    pub time_us: f64,
    /// Standard error of the mean, over iterations.
    pub error_us: f64,
    /// Elements that differ from the reference, over all ranks; `None` where nothing was checked.
    pub wrong: Option<u64>,
    /// The place of the first wrong element.
    pub first_wrong: Option<String>,
    /// Hash of all ranks' results; `None` where nothing was checked.
    pub checksum: Option<String>,
    /// Microseconds of each call on the slowest rank, in order; empty where calls were not timed alone.
    pub each_us: Vec<f64>,
}

/// The forms that a collective has: out of place, in place.
pub(crate) fn forms(collective: Collective) -> &'static [bool] {
    match (collective.out_of_place(), collective.in_place()) {
        (true, true) => &[false, true],
        (false, _) => &[true],
        (true, false) => &[false],
    }
}

/// Refuses a size that does not fit in memory.
///
/// # Errors
/// The size needs more memory than is available.
pub fn fits(choice: &Choice, size: u64) -> CommandResult {
    let (ranks, (_, bytes)) = (choice.shape.ranks(), choice.count(size));
    memory::threads(ranks)?;
    // Inputs, outputs and copies in flight on every rank, the reference and its operands: six times the buffers.
    memory::require(
        bytes.checked_mul(6 * u64::from(ranks)),
        &format!("{bytes} bytes on each of {ranks} ranks"),
    )
}

/// Measures one size of a choice in every form that the collective has.
///
/// # Errors
/// Not enough memory, or a failed run.
pub fn measure_size<T: Sample>(
    world: &World,
    choice: &Choice,
    size: u64,
    timing: Timing,
) -> CommandResult<Vec<MeasuredSide>> {
    fits(choice, size)?;
    let plan = choice.at(size)?;
    let data = Arc::new(Data::<T>::new(choice, &plan, timing)?);
    forms(choice.collective).iter().map(|&in_place| side(world, choice, &data, timing, in_place)).collect()
}

/// [`measure_size`] with this process as one rank of several; every rank gets the results of all.
///
/// # Errors
/// As [`measure_size`].
pub fn measure_process<T: Sample>(
    comm: &Communicator,
    choice: &Choice,
    size: u64,
    timing: Timing,
) -> CommandResult<Vec<MeasuredSide>> {
    fits(choice, size)?;
    let plan = choice.at(size)?;
    let data = Data::<T>::new(choice, &plan, timing)?;
    let one = |&in_place: &bool| {
        let mine = one_rank(comm, choice, &data, timing, in_place).map_err(CommandError::from)?;
        Ok(combined(&mine.gathered(comm).map_err(CommandError::from)?, timing, in_place))
    };
    forms(choice.collective).iter().map(one).collect()
}

/// The ranks' inputs and expected results.
pub(crate) struct Data<T> {
    /// Elements that a rank contributes.
    pub count: usize,
    /// The whole buffer of each rank.
    pub inputs: Vec<Vec<T>>,
    /// The expected result of each rank; `None` if nothing is checked. Ranks with equal results share one.
    pub expected: Option<Vec<Arc<Vec<T>>>>,
}

impl<T: Sample> Data<T> {
    pub fn new(choice: &Choice, plan: &CallPlan, timing: Timing) -> CommandResult<Data<T>> {
        let whole = plan.geometry.count() as usize;
        let ranks = choice.shape.ranks();
        let inputs: Vec<Vec<T>> = (0..ranks).map(|rank| inputs::make(timing.seed, rank, whole)).collect();
        let data = Data { count: plan.count as usize, inputs, expected: None };
        if !timing.check {
            return Ok(data);
        }
        let proof = check::check(&*plan.schedule, choice.collective, choice.shape.root())
            .map_err(CommandError::check)?;
        let mut expected: Vec<Arc<Vec<T>>> = Vec::new();
        for rank in (0..ranks).map(Rank) {
            let same = rank.0 > 0 && same_end(&proof, plan, rank);
            let end = match expected.first() {
                Some(first) if same => first.clone(),
                _ => Arc::new(data.end(choice, plan, &proof, rank)),
            };
            expected.push(end);
        }
        Ok(Data { expected: Some(expected), ..data })
    }

    /// The whole buffer as rank `rank` must end with it.
    fn end(&self, choice: &Choice, plan: &CallPlan, proof: &Proof, rank: Rank) -> Vec<T> {
        let reduce = |into: &mut [T], from: &[T]| kernels::reduce(choice.op, into, from);
        let mut end = proof.evaluate(rank, &plan.geometry, &self.inputs, &reduce);
        if choice.collective.reduces() && choice.op == ReduceOp::Avg {
            kernels::divide(&mut end, choice.shape.ranks());
        }
        end
    }

    /// Compares what a rank ended with, its part of the output, with the expected values: the number of wrong elements, the first
    /// one's place and a hash; `None` without expected values.
    pub fn checked(&self, choice: &Choice, rank: Rank, end: &[T]) -> Option<(u64, Option<usize>, u64)> {
        let all = self.expected.as_ref()?;
        let wanted = match choice.collective.meaning().output.part {
            _ if end.is_empty() => &[],
            Portion::Block => &all[rank.index()][self.block(rank)],
            _ => &all[rank.index()][..],
        };
        let (wrong, first) = inputs::differing(end, wanted);
        Some((wrong, first, inputs::hash(end)))
    }

    pub fn block(&self, rank: Rank) -> std::ops::Range<usize> {
        rank.index() * self.count..(rank.index() + 1) * self.count
    }
}

/// Whether a rank's result is added up in the same order as rank 0's: their reduction trees are equal.
fn same_end(proof: &Proof, plan: &CallPlan, rank: Rank) -> bool {
    let pieces = (0..plan.schedule.chunks()).flat_map(|c| (0..plan.schedule.segments()).map(move |s| (c, s)));
    pieces.into_iter().all(|(chunk, segment)| {
        let value = proof.value(rank, chunk, segment);
        value.is_some() && value == proof.value(Rank(0), chunk, segment)
    })
}

/// The observations of one rank: the times of its calls and the checks of its results.
#[derive(Default)]
pub(crate) struct Seen {
    /// The time of a call, in each stretch.
    pub times: Vec<Picos>,
    /// The time of each call, where calls are timed alone.
    pub each: Vec<Picos>,
    /// The number of wrong elements, the first of them, and the result's hash.
    pub checked: Option<(u64, Option<usize>, u64)>,
}

impl Seen {
    /// The observations as numbers, which ranks send to each other.
    fn words(&self) -> Vec<i64> {
        let (wrong, first, hash) = self.checked.unwrap_or_default();
        let first = first.map_or(-1, |at| at as i64);
        let stretches = self.times.len() as i64;
        let head = [i64::from(self.checked.is_some()), wrong as i64, first, hash as i64, stretches];
        head.into_iter().chain(self.times.iter().chain(&self.each).map(|time| time.0 as i64)).collect()
    }

    /// The observations of all ranks, on every rank.
    pub fn gathered(&self, comm: &Communicator) -> Result<Vec<Seen>, Error> {
        let words = self.words();
        let mut all = vec![0i64; words.len() * comm.size() as usize];
        comm.all_gather(&words, &mut all)?;
        Ok(all.chunks(words.len()).map(Seen::read).collect())
    }

    fn read(words: &[i64]) -> Seen {
        let (head, times) = words.split_at(5);
        let first = usize::try_from(head[2]).ok();
        let checked = (head[0] == 1).then_some((head[1] as u64, first, head[3] as u64));
        let mut times: Vec<Picos> = times.iter().map(|time| Picos(*time as u64)).collect();
        let each = times.split_off(head[4] as usize);
        Seen { times, each, checked }
    }
}

fn side<T: Sample>(
    world: &World,
    choice: &Choice,
    data: &Data<T>,
    timing: Timing,
    in_place: bool,
) -> CommandResult<MeasuredSide> {
    let seen = world
        .run(|comm: Communicator| one_rank(&comm, choice, data, timing, in_place))
        .map_err(CommandError::from)?;
    Ok(combined(&seen, timing, in_place))
}

/// The observations of all ranks combined.
pub(crate) fn combined(seen: &[Seen], timing: Timing, in_place: bool) -> MeasuredSide {
    let (time_us, error_us) = if timing.virtual_time {
        (seen.iter().flat_map(|s| &s.times).max().map_or(0.0, |t| t.as_micros()), 0.0)
    } else {
        mean(seen)
    };
    let checked: Vec<_> = seen.iter().filter_map(|s| s.checked).collect();
    let all = !checked.is_empty();
    let calls = seen.first().map_or(0, |rank| rank.each.len());
    let slowest =
        |at: usize| seen.iter().map(|rank| rank.each[at]).max().map_or(0.0, |time| time.as_micros());
    let first = (0u32..).zip(seen).find_map(|(rank, s)| Some((rank, s.checked?.1?)));
    MeasuredSide {
        in_place,
        time_us,
        error_us,
        wrong: all.then(|| checked.iter().map(|(wrong, ..)| wrong).sum()),
        first_wrong: first.map(|(rank, at)| format!("rank {rank}, element {at}")),
        checksum: all.then(|| inputs::join(checked.iter().map(|(.., hash)| *hash))),
        each_us: (0..calls).map(slowest).collect(),
    }
}

fn one_rank<T: Sample>(
    comm: &Communicator,
    choice: &Choice,
    data: &Data<T>,
    timing: Timing,
    in_place: bool,
) -> Result<Seen, Error> {
    let rank = comm.rank();
    let mut buffers = Buffers::new(comm, choice, data, timing.registered);
    let mut times = Vec::new();
    // Reading the clock takes some 40 ns, so one reading times several short calls, unless there are many readings.
    let short = ((64 << 10) / (data.count * size_of::<T>()).max(1024)).max(1) as u64;
    let calls = short.min((MOST_CALLS / u64::from(timing.iterations)).max(1));
    if !timing.virtual_time {
        for _ in 0..timing.warmup {
            buffers.call(comm, choice, in_place)?;
        }
        comm.barrier()?;
        for _ in 0..timing.iterations {
            let start = comm.now();
            for _ in 0..calls {
                buffers.call(comm, choice, in_place)?;
            }
            times.push(Picos((comm.now() - start).0 / calls));
        }
        // Reductions in place have changed their own input, so the checked call starts from the samples again.
        buffers = Buffers::new(comm, choice, data, timing.registered);
    }
    let start = comm.now();
    buffers.call(comm, choice, in_place)?;
    if timing.virtual_time {
        times.push(comm.now() - start);
    }
    let checked = data.checked(choice, rank, buffers.end(choice, rank));
    Ok(Seen { times, checked, each: Vec::new() })
}

/// The buffers of a call: an input and an output, or one buffer for both.
struct Buffers<T: Sample> {
    input: Buffer<T>,
    output: Buffer<T>,
}

impl<T: Sample> Buffers<T> {
    fn new(comm: &Communicator, choice: &Choice, data: &Data<T>, registered: bool) -> Buffers<T> {
        let rank = comm.rank();
        let whole = &data.inputs[rank.index()][..];
        let zeros = |len: usize| match registered {
            true => comm.buffer(len),
            false => Buffer::zeroed(len),
        };
        let holding = |values: &[T]| {
            let mut buffer = zeros(values.len());
            buffer.copy_from_slice(values);
            buffer
        };
        // Every rank allocates an input and an output, even if it contributes or receives nothing.
        let one_buffer = !choice.collective.out_of_place();
        let row = choice.collective.meaning();
        let given = if row.input.part == Portion::Block { data.block(rank) } else { 0..whole.len() };
        let input = if one_buffer { zeros(0) } else { holding(&whole[given]) };
        let output = match row.output.part {
            _ if choice.collective.in_place() => holding(whole),
            Portion::Block => zeros(data.count),
            _ => zeros(whole.len()),
        };
        Buffers { input, output }
    }

    fn call(&mut self, comm: &Communicator, choice: &Choice, in_place: bool) -> Result<(), Error> {
        let input: &[T] = if in_place { &[] } else { &self.input };
        comm.collective(choice.collective, input, &mut self.output, choice.op, choice.shape.root())
    }

    /// The rank's result; empty if the collective defines none for the rank.
    fn end(&self, choice: &Choice, rank: Rank) -> &[T] {
        let only_root = choice.collective.meaning().output.on == On::Root;
        if only_root && rank != choice.shape.root() { &[] } else { &self.output }
    }
}

/// Mean over ranks and iterations in microseconds, and its standard error over iterations.
fn mean(seen: &[Seen]) -> (f64, f64) {
    let count = seen.first().map_or(0, |s| s.times.len());
    if count == 0 {
        return (0.0, 0.0);
    }
    let of = |at: usize| seen.iter().map(|s| s.times[at].as_micros()).sum::<f64>() / seen.len() as f64;
    let each: Vec<f64> = (0..count).map(of).collect();
    crate::measure::statistics::mean_and_error(&each)
}
