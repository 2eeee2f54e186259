//! `allfold bench`: measures a collective on real data, checks every result, and prints nccl-tests' table.

use crate::cli::Common;
use crate::failure::{Failure, Outcome};
use crate::measure::{self, Side, Timing};
use crate::plan::{self, Choice};
use crate::records::{Call, Limit, MeasuredCollective};
use crate::session::Session;
use crate::sweep::SweepArgs;
use crate::{for_dtype, limits, progress, table};
use allfold_collectives::check;
use allfold_collectives::{Collective, World};
use clap::ValueEnum;

/// Flags of `bench`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold bench all_reduce --backend threads --ranks 4 -b 1K -e 64M -f 4
  allfold bench all_reduce --backend threads --ranks 8 --algo ring -b 16M -d bf16 -o max -n 50
  allfold bench broadcast --backend sim --topology nodes8 --ranks 16 -b 1M -r 3

Every result is held against an exact reference, bit for bit; exits with 1 if any element differs. The memory bandwidth
of this machine is measured in the same run and stands below the table.")]
pub struct Args {
    #[command(flatten)]
    sweep: SweepArgs,
    /// What carries the data: threads (real time) or sim (virtual time)
    #[arg(long, value_enum)]
    backend: Backend,
    /// Timed calls
    #[arg(short = 'n', long = "iters", value_name = "COUNT", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Measuring")]
    iterations: u32,
    /// Calls before those
    #[arg(
        short = 'w',
        long = "warmup_iters",
        value_name = "COUNT",
        default_value_t = 5,
        help_heading = "Measuring"
    )]
    warmup: u32,
    /// Check results: 1 or 0
    #[arg(short = 'c', long = "check", value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1), help_heading = "Measuring")]
    check: u8,
    /// Seed of the inputs
    #[arg(long, value_name = "SEED", default_value_t = 0, help_heading = "Measuring")]
    seed: u64,
    #[command(flatten)]
    common: Common,
}

/// What carries the data.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Threads of this process, real time.
    Threads,
}

/// What a measured sweep is asked for.
pub struct Bench {
    /// The call.
    pub choice: Choice,
    /// How it is measured.
    pub timing: Timing,
}

impl Bench {
    /// One size on threads: a record per form that the collective has, and where the first wrong element is.
    ///
    /// # Errors
    /// Not enough memory, or a failed run.
    pub fn on_threads(&self, size: u64) -> Outcome<Vec<(MeasuredCollective, Option<String>)>> {
        let world = self.choice.on(World::threads(self.choice.shape.ranks()));
        let sides = self.sides(&world, size)?;
        let call = self.call(size)?;
        Ok(sides.into_iter().map(|side| (self.measured(&call, &side), side.first_wrong)).collect())
    }

    fn sides(&self, world: &World, size: u64) -> Outcome<Vec<Side>> {
        let (choice, timing) = (&self.choice, self.timing);
        for_dtype!(choice.dtype, sized(world, choice, size, timing))
    }

    /// What is called, with the identity of its result.
    fn call(&self, size: u64) -> Outcome<Call> {
        let plan = self.choice.at(size)?;
        let proof = check::symbolic(&*plan.schedule, self.choice.collective, self.choice.shape.root());
        let proof = proof.map_err(Failure::check)?;
        let tree = proof.hash().map(|hash| hash.to_string());
        Ok(Call { tree, order: proof.order().map(|order| order.to_string()), ..self.choice.call(&plan) })
    }

    fn measured(&self, call: &Call, side: &Side) -> MeasuredCollective {
        let (algbw_gbps, busbw_gbps) =
            plan::bandwidths(self.choice.collective, call.ranks, call.bytes, side.time_us);
        MeasuredCollective {
            backend: "threads".into(),
            call: call.clone(),
            in_place: side.in_place,
            iterations: self.timing.iterations,
            time_us: side.time_us,
            time_error_us: side.error_us,
            algbw_gbps,
            busbw_gbps,
            wrong: side.wrong,
            checksum: side.checksum.clone(),
        }
    }
}

fn sized<T: crate::samples::Sample>(
    world: &World,
    choice: &Choice,
    size: u64,
    timing: Timing,
) -> Outcome<Vec<Side>> {
    measure::size::<T>(world, choice, size, timing)
}

/// Measures every size and prints the table.
pub fn run(args: &Args) -> Outcome {
    let bench = Bench {
        choice: args.sweep.choice()?,
        timing: Timing {
            iterations: args.iterations,
            warmup: args.warmup,
            check: args.check == 1,
            seed: args.seed,
            virtual_time: false,
        },
    };
    let sizes = args.sweep.sizes()?;
    sizes.iter().try_for_each(|&size| measure::fits(&bench.choice, size))?;
    let mut session = Session::open(args.common.json.as_deref(), Some(args.seed))?;
    match args.backend {
        Backend::Threads => threads(args, &bench, &sizes, &mut session)?,
    }
    session.close()
}

fn threads(args: &Args, bench: &Bench, sizes: &[u64], session: &mut Session) -> Outcome {
    let name = bench.choice.collective.name();
    let (ranks, cores) = (args.sweep.ranks, cores());
    session.say(format!("# allfold bench {name}: {ranks} ranks on threads; measured on this machine"))?;
    session.say(format!(
        "# {} warmup iters: {} iters: {} validation: {}",
        args.sweep.summary(),
        args.warmup,
        args.iterations,
        args.check
    ))?;
    if ranks > cores {
        session.say(format!("# {ranks} ranks share {cores} cores"))?;
    }
    session.say("#")?;
    session.say(table::measured_header())?;
    let mut records = Vec::new();
    let mut first_wrong = None;
    for &size in sizes {
        let spinner = progress::spinner(&format!("{name}, {size} bytes"));
        let measured = bench.on_threads(size);
        spinner.finish_and_clear();
        let (sides, wrong): (Vec<_>, Vec<_>) = measured?.into_iter().unzip();
        let side = |in_place: bool| sides.iter().find(|side| side.in_place == in_place);
        session.say(table::measured_row(side(false), side(true)))?;
        for record in &sides {
            session.record(record)?;
        }
        first_wrong =
            first_wrong.or(wrong.into_iter().flatten().next().map(|at| format!("{size} bytes, {at}")));
        records.extend(sides);
    }
    let wrong: Option<u64> = records.iter().map(|record| record.wrong).sum();
    let busbw: Vec<f64> = records.iter().map(|record| record.busbw_gbps).collect();
    session.say(table::footer(name, wrong, &busbw))?;
    let mut lines: Vec<String> = records.iter().map(identity).collect();
    lines.dedup();
    lines.iter().try_for_each(|line| session.say(line))?;
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let limit = limits::measure(ranks.min(cores), largest.clamp(1 << 20, 64 << 20))?;
    session.record(&limit)?;
    session.say(limit_line(&limit, &records))?;
    match (wrong, first_wrong) {
        (Some(wrong), at) if wrong > 0 => {
            Err(Failure::check(format!("{wrong} wrong elements; the first: {}", at.unwrap_or_default())))
        }
        _ => Ok(()),
    }
}

/// How many threads run at once here.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

/// What a result is, for whoever compares two: equal identity and inputs, equal checksum.
fn identity(record: &MeasuredCollective) -> String {
    format!(
        "# {} B: {}, order {}, tree {}, checksum {}",
        record.call.bytes,
        record.call.algorithm,
        record.call.order.as_deref().unwrap_or("none"),
        record.call.tree.as_deref().unwrap_or("none"),
        record.checksum.as_deref().unwrap_or("N/A"),
    )
}

fn limit_line(limit: &Limit, records: &[MeasuredCollective]) -> String {
    let mut line = format!(
        "# Limit, measured in this run over {} threads: copy {:.2} GB/s, a += b {:.2} GB/s",
        limit.threads, limit.copy_gbps, limit.reduce_gbps
    );
    let all_reduce =
        records.iter().filter(|r| r.call.collective == Collective::AllReduce.name() && r.call.ranks > 1);
    if let Some(best) = all_reduce.max_by(|a, b| a.algbw_gbps.total_cmp(&b.algbw_gbps)) {
        let share = best.algbw_gbps * f64::from(best.call.ranks - 1) / limit.reduce_gbps;
        line.push_str(&format!(
            "; the best algbw of {:.2} GB/s adds {} buffers, {:.0} % of that",
            best.algbw_gbps,
            best.call.ranks - 1,
            share * 100.0
        ));
    }
    line
}
