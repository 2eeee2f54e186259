//! `allfold bench`: measures a collective on real data, checks every result, and prints nccl-tests' table.

mod gpu;

use crate::call::plan::{self, Choice};
use crate::call::sweep::SweepArgs;
use crate::call::table;
use crate::cli::common::Common;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::progress;
use crate::cli::session::Session;
use crate::measure::limits;
use crate::measure::ranks::{Side, Timing, fits, measure_process, measure_size};
use crate::predict::machine::Machine;
use crate::training::place;
use allfold_collectives::check;
use allfold_collectives::environment::Environment;
use allfold_collectives::tcp::{Secret, Security, duplex};
use allfold_collectives::{Collective, Communicator, DType, Joining, ReduceOp, World};
use allfold_kernels::for_dtype;
use allfold_report::records::{Call, Limit, MeasuredCollective, SimulatedCollective};
use clap::ValueEnum;

/// Flags of `bench`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold bench all_reduce --backend threads --ranks 4 -b 1K -e 64M -f 4
  allfold bench all_reduce --backend threads --ranks 8 --algo ring -b 16M -d bf16 -o max -n 50
  allfold bench all_reduce --backend tcp --ranks 4 -b 4K -e 64M -f 16
  allfold launch -n 4 -- bench all_reduce --backend shm --ranks 4 -b 4K -e 64M -f 16
  mpirun -n 4 allfold bench all_reduce --backend mpi --path native --ranks 4 -b 4K -e 64M
  allfold bench broadcast --backend sim --topology nodes8 --ranks 16 -b 1M -r 3
  allfold bench all_reduce --backend device --ranks 8 -b 1M -e 256M -f 4
  allfold bench all_reduce --backend nccl --ranks 2 -b 8 -e 256M -f 4

Every result is held against an exact reference, bit for bit; exits with 1 if any element differs. The memory bandwidth
of this machine is measured in the same run and stands below the table.")]
pub struct Args {
    #[command(flatten)]
    sweep: SweepArgs,
    /// What carries the data: threads, shm, tcp or mpi (real time), device or nccl (GPUs, by their own clocks), or sim
    /// (virtual time). Where a launcher has started this process, ranks of shm and tcp are its processes; those of mpi
    /// always are
    #[arg(long, value_enum)]
    backend: Backend,
    /// On threads and device: fused (ranks read each other's buffers) or messages (every send of the schedule); on mpi: messages, or
    /// native (MPI's own collectives) [default: fused, on mpi messages]
    #[arg(long, value_enum)]
    path: Option<Path>,
    /// On sim: the machine, a built-in name or a TOML file [default: switch]
    #[arg(long, value_name = "T")]
    topology: Option<String>,
    /// On tcp: what connections are protected by [default: loopback]
    #[arg(long, value_enum, value_name = "MODE")]
    security: Option<Mode>,
    /// On tcp: as if hosts had this many ranks each, whose messages among themselves go through memory [default: none do]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_host: Option<u32>,
    /// Timed calls; on virtual time the first call says it all
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
    /// On shm: buffers that the other ranks reach where they are (1), or the caller's own memory, copied (0)
    #[arg(short = 'R', long = "local_register", value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1), help_heading = "Measuring")]
    register: u8,
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
    /// Threads or processes that talk through a segment of shared memory, real time.
    Shm,
    /// Threads or processes that talk over loopback sockets, real time.
    Tcp,
    /// Processes that mpirun has started, real time.
    Mpi,
    /// Buffers on the GPUs of this process, one per rank: our algorithms, a graph each.
    Device,
    /// A thread per rank over NCCL: its own collectives, or with --algo ours over its messages.
    Nccl,
    /// Threads that carry real data on a virtual clock.
    Sim,
}

/// How ranks that are threads do a collective.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Through shared memory.
    Fused,
    /// By every message of the schedule.
    Messages,
    /// By MPI's own collectives.
    Native,
}

/// Where a measured sweep runs.
pub enum Carrier {
    /// Ranks that are started for each size.
    World(World),
    /// This process is one rank.
    Process(Communicator),
}

impl Path {
    /// As it is written after --path.
    pub fn name(self) -> &'static str {
        match self {
            Path::Fused => "fused",
            Path::Messages => "messages",
            Path::Native => "native",
        }
    }
}

/// What connections between ranks are protected by.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: loopback only.
    Loopback,
    /// A handshake under a secret, then TLS 1.3.
    Tls,
    /// A handshake under a secret, then plain frames.
    TrustedFabric,
}

/// What a measured sweep is asked for.
pub struct Bench {
    /// How threads do it.
    pub path: Path,
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
        let world = World::threads(self.choice.shape.ranks());
        let world = if self.path == Path::Messages { world.messages() } else { world };
        self.on("threads", &Carrier::World(self.choice.on(world)), size)
    }

    /// One size where the ranks are, likewise.
    fn on(
        &self,
        backend: &str,
        carrier: &Carrier,
        size: u64,
    ) -> Outcome<Vec<(MeasuredCollective, Option<String>)>> {
        let (choice, timing) = (&self.choice, self.timing);
        let sides = match carrier {
            Carrier::World(world) => self.sides(world, size)?,
            Carrier::Process(comm) => for_dtype!(choice.dtype, measure_process(comm, choice, size, timing))?,
        };
        let call = self.call(size)?;
        Ok(sides.into_iter().map(|side| (self.measured(backend, &call, &side), side.first_wrong)).collect())
    }

    /// One size on virtual time: a record per form that the collective has, and where the first wrong element is.
    ///
    /// # Errors
    /// Not enough memory, or a failed run.
    pub fn on_sim(
        &self,
        machine: &Machine,
        size: u64,
    ) -> Outcome<Vec<(SimulatedCollective, Option<String>)>> {
        let sides = self.sides(&self.choice.on(World::sim(&machine.topology).costs(machine.costs)), size)?;
        let call = self.call(size)?;
        let (timed, _) = machine.time(&self.choice, size)?;
        let record = |side: &Side| {
            let (algbw_gbps, busbw_gbps) =
                plan::bandwidths(self.choice.collective, call.ranks, call.bytes, side.time_us);
            SimulatedCollective {
                call: call.clone(),
                engine: "carried".into(),
                time_us: side.time_us,
                algbw_gbps,
                busbw_gbps,
                folded_lanes: None,
                folded_ranks: None,
                skipped_messages: None,
                wrong: side.wrong,
                checksum: side.checksum.clone(),
                ..timed.clone()
            }
        };
        Ok(sides.into_iter().map(|side| (record(&side), side.first_wrong)).collect())
    }

    fn sides(&self, world: &World, size: u64) -> Outcome<Vec<Side>> {
        let (choice, timing) = (&self.choice, self.timing);
        for_dtype!(choice.dtype, measure_size(world, choice, size, timing))
    }

    /// What is called, with the identity of its result.
    fn call(&self, size: u64) -> Outcome<Call> {
        let plan = self.choice.at(size)?;
        if self.path == Path::Native {
            // The order of arithmetic is not ours, so there is no tree to name.
            return Ok(Call { algorithm: "mpi_native".into(), ..self.choice.call(&plan) });
        }
        let proof = check::symbolic(&*plan.schedule, self.choice.collective, self.choice.shape.root());
        let proof = proof.map_err(Failure::check)?;
        let tree = proof.hash().map(|hash| hash.to_string());
        Ok(Call { tree, order: proof.order().map(|order| order.to_string()), ..self.choice.call(&plan) })
    }

    fn measured(&self, backend: &str, call: &Call, side: &Side) -> MeasuredCollective {
        let (algbw_gbps, busbw_gbps) =
            plan::bandwidths(self.choice.collective, call.ranks, call.bytes, side.time_us);
        MeasuredCollective {
            backend: backend.into(),
            path: match backend {
                "threads" | "mpi" | "device" => Some(self.path.name().into()),
                "shm" => Some(if self.timing.registered { "registered" } else { "copied" }.into()),
                _ => None,
            },
            call: call.clone(),
            in_place: side.in_place,
            iterations: self.timing.iterations,
            time_us: side.time_us,
            time_error_us: side.error_us,
            algbw_gbps,
            busbw_gbps,
            estimate_us: None,
            wrong: side.wrong,
            checksum: side.checksum.clone(),
        }
    }
}

impl Args {
    /// How ranks do it, by the flags.
    fn path(&self) -> Outcome<Path> {
        let path = self.path.unwrap_or(match self.backend {
            Backend::Mpi => Path::Messages,
            _ => Path::Fused,
        });
        let fits = match path {
            Path::Native => self.backend == Backend::Mpi,
            Path::Fused => self.backend != Backend::Mpi,
            Path::Messages => matches!(self.backend, Backend::Mpi | Backend::Threads | Backend::Device),
        };
        match fits {
            true => Ok(path),
            false => Err(Failure::usage(
                "--path: fused and messages are of --backend threads and device, messages and native of mpi",
            )),
        }
    }

    /// Whose memory the buffers are, as the table says it.
    fn buffers(&self) -> &'static str {
        if self.register == 1 { "in registered buffers" } else { "through copies of buffers" }
    }

    /// What runs on real time: its name, the ranks, and how the table says it.
    fn real(&self, choice: &Choice) -> Outcome<(&'static str, Carrier, String)> {
        let (ranks, path) = (self.sweep.ranks, self.path()?);
        let launched = match self.backend {
            Backend::Shm | Backend::Tcp => Environment::detect().map_err(Failure::usage)?,
            _ => None,
        };
        let name = match self.backend {
            Backend::Threads => "threads",
            Backend::Shm => "shm",
            Backend::Mpi => "mpi",
            // Those of GPUs and of virtual time go elsewhere.
            Backend::Tcp | Backend::Sim | Backend::Device | Backend::Nccl => "tcp",
        };
        let comm = match (self.backend, launched) {
            (Backend::Mpi, _) => place::over_mpi(path == Path::Native)?,
            (backend, Some(launched)) => {
                let joining = Joining::from_env().map_err(Failure::from)?;
                let joining = Joining { share: backend == Backend::Shm, ..joining };
                Communicator::join(&launched, joining).map_err(Failure::from)?
            }
            (Backend::Threads, None) => {
                let world = World::threads(ranks);
                let world = if path == Path::Messages { world.messages() } else { world };
                let how = format!("on threads, {}", path.name());
                return Ok((name, Carrier::World(choice.on(world)), how));
            }
            (Backend::Shm, None) => {
                let buffers = self.buffers();
                let how =
                    format!("as threads of one process that share a segment, as processes do, {buffers}");
                return Ok((name, Carrier::World(choice.on(World::shm(ranks))), how));
            }
            (Backend::Tcp | Backend::Sim | Backend::Device | Backend::Nccl, None) => {
                let secret = || {
                    Secret::random().map_err(|error| Failure::from(allfold_collectives::Error::from(error)))
                };
                let security = match self.security.unwrap_or(Mode::Loopback) {
                    Mode::Loopback => Security::Loopback,
                    Mode::Tls => Security::Tls(secret()?),
                    Mode::TrustedFabric => Security::TrustedFabric(secret()?),
                };
                let how = format!("as threads of one process, over loopback TCP ({})", security.name());
                let world = World::tcp(ranks).security(security);
                let (world, how) = match self.ranks_per_host {
                    Some(each) => (world.ranks_per_host(each), format!("{how}, as hosts of {each} ranks")),
                    None => (world, how),
                };
                return Ok((name, Carrier::World(choice.on(world)), how));
            }
        };
        if comm.size() != ranks {
            return Err(Failure::usage(format!("--ranks {ranks}, but {} were started", comm.size())));
        }
        if self.backend == Backend::Shm && ranks > 1 && !comm.shares_memory() {
            return Err(Failure::run("these ranks share no memory: they are not all on one host"));
        }
        let how = match self.backend {
            Backend::Mpi => format!("as processes of an MPI job, {}", path.name()),
            Backend::Shm => format!("as processes that share a segment, {}", self.buffers()),
            _ => "as processes, over TCP".into(),
        };
        Ok((name, Carrier::Process(choice.within(comm)?), how))
    }
}

/// Measures every size and prints the table.
pub fn run(args: &Args) -> Outcome {
    let bench = Bench {
        path: args.path()?,
        choice: args.sweep.choice()?,
        timing: Timing {
            iterations: args.iterations,
            warmup: args.warmup,
            check: args.check == 1,
            seed: args.seed,
            virtual_time: args.backend == Backend::Sim,
            registered: args.register == 1,
        },
    };
    let sizes = args.sweep.sizes()?;
    sizes.iter().try_for_each(|&size| fits(&bench.choice, size))?;
    let machine = match (args.backend, &args.topology) {
        (Backend::Sim, topology) => {
            Some(Machine::named(topology.as_deref().unwrap_or("switch"), args.sweep.ranks)?)
        }
        (_, None) => None,
        (_, Some(_)) => {
            return Err(Failure::usage("--topology needs the virtual clock: use --backend sim"));
        }
    };
    if args.security.is_some() && args.backend != Backend::Tcp {
        return Err(Failure::usage("--security is about sockets: use --backend tcp"));
    }
    if args.ranks_per_host.is_some() && args.backend != Backend::Tcp {
        return Err(Failure::usage(
            "--ranks-per-host is about sockets and what goes beside them: use --backend tcp",
        ));
    }
    if matches!(args.backend, Backend::Device | Backend::Nccl) {
        return gpu::run(args, &bench, &sizes);
    }
    let json = args.common.json.as_deref();
    let Some(machine) = machine else { return real(args, bench, &sizes) };
    let mut session = Session::open(json, Some(args.seed))?;
    let checked = simulated(args, &bench, &machine, &sizes, &mut session)?;
    session.close()?;
    checked
}

/// What the checks of a sweep came to: told only after the records are written.
type Checked = Outcome;

fn verdict(wrong: Option<u64>, first: Option<String>) -> Checked {
    match wrong {
        Some(wrong) if wrong > 0 => {
            Err(Failure::check(format!("{wrong} wrong elements; the first: {}", first.unwrap_or_default())))
        }
        _ => Ok(()),
    }
}

/// Measures on real time; of several processes the first one tells.
fn real(args: &Args, mut bench: Bench, sizes: &[u64]) -> Outcome {
    let (backend, carrier, how) = args.real(&bench.choice)?;
    if bench.path == Path::Native {
        // Of floats that are reduced in MPI's order there is no exact reference.
        let (dtype, op) = (bench.choice.dtype, bench.choice.op);
        let exact = !bench.choice.collective.reduces()
            || matches!(op, ReduceOp::Min | ReduceOp::Max)
            || !matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::Bf16);
        bench.timing.check &= exact;
    }
    let speaks = match &carrier {
        Carrier::World(_) => true,
        Carrier::Process(comm) => comm.rank().0 == 0,
    };
    let mut session = match speaks {
        true => Session::open(args.common.json.as_deref(), Some(args.seed))?,
        false => Session::silent(Some(args.seed)),
    };
    let checked = measured(args, &bench, (backend, carrier, how), sizes, &mut session, speaks)?;
    session.close()?;
    checked
}

fn measured(
    args: &Args,
    bench: &Bench,
    (backend, carrier, how): (&str, Carrier, String),
    sizes: &[u64],
    session: &mut Session,
    speaks: bool,
) -> Outcome<Checked> {
    let name = bench.choice.collective.name();
    let (ranks, cores) = (args.sweep.ranks, cores());
    session.say(format!("# allfold bench {name}: {ranks} ranks {how}; measured on this machine"))?;
    session.say(format!(
        "# {} warmup iters: {} iters: {} validation: {}",
        args.sweep.summary(),
        args.warmup,
        args.iterations,
        u8::from(bench.timing.check)
    ))?;
    if ranks > cores {
        session.say(format!("# {ranks} ranks share {cores} cores"))?;
    }
    session.say("#")?;
    session.say(table::measured_header())?;
    let mut records = Vec::new();
    let mut first_wrong = None;
    for &size in sizes {
        let spinner = speaks.then(|| progress::spinner(&format!("{name}, {size} bytes")));
        let measured = bench.on(backend, &carrier, size);
        spinner.iter().for_each(|spinner| spinner.finish_and_clear());
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
    // The others end, and the machine is quiet for what it can do at best.
    drop(carrier);
    if !speaks {
        return Ok(verdict(wrong, first_wrong));
    }
    let large = sizes.iter().copied().filter(|size| (1 << 20..=64 << 20).contains(size)).max();
    let size =
        large.unwrap_or_else(|| if sizes.iter().all(|size| *size < 1 << 20) { 1 << 20 } else { 64 << 20 });
    let mut limit = limits::measure(ranks.min(cores), size)?;
    if bench.choice.collective == Collective::AllReduce && ranks > 1 {
        limit.fused_gbps = Some(limits::fused(ranks.min(cores), ranks, size)?);
    }
    session.record(&limit)?;
    session.say(limit_line(&limit, &records))?;
    if args.backend == Backend::Tcp {
        let each = (size as f64 * bench.choice.collective.bus_factor(ranks)) as usize;
        let seconds = duplex(ranks, each).map_err(Failure::run)?;
        let alone = each as f64 / seconds / 1e9;
        let mut line = format!("# sockets alone: {alone:.2} GB/s each way at once");
        let same = records.iter().filter(|record| record.call.bytes == size).map(|record| record.busbw_gbps);
        if let Some(busbw) = same.reduce(f64::max) {
            line.push_str(&format!("; busbw {busbw:.2} GB/s at that size = {:.0} %", 100.0 * busbw / alone));
        }
        session.say(line)?;
    }
    Ok(verdict(wrong, first_wrong))
}

/// The same table with real data on virtual time.
fn simulated(
    args: &Args,
    bench: &Bench,
    machine: &Machine,
    sizes: &[u64],
    session: &mut Session,
) -> Outcome<Checked> {
    let name = bench.choice.collective.name();
    session.say(format!(
        "# allfold bench {name}: {} ranks carry data on {}; simulated, all times are virtual",
        args.sweep.ranks, machine.name
    ))?;
    session.say(format!("# {} validation: {}", args.sweep.summary(), args.check))?;
    session.say("#")?;
    session.say(table::simulated_header())?;
    let (mut wrong, mut first_wrong, mut busbw, mut lines) = (None, None, Vec::new(), Vec::new());
    for &size in sizes {
        let spinner = progress::spinner(&format!("{name}, {size} bytes"));
        let carried = bench.on_sim(machine, size);
        spinner.finish_and_clear();
        let (sides, firsts): (Vec<_>, Vec<_>) = carried?.into_iter().unzip();
        // Virtual time does not depend on which buffer takes the result: one side stands for both where there is one.
        let side = |at: usize| sides.get(at).or(sides.first());
        if let (Some(first), Some(last)) = (side(0), side(1)) {
            session.say(table::simulated_row(first, last))?;
        }
        for record in &sides {
            session.record(record)?;
            wrong = record.wrong.map(|more| wrong.unwrap_or(0) + more).or(wrong);
            busbw.push(record.busbw_gbps);
            lines.push(identity_of(&record.call, record.checksum.as_deref()));
        }
        first_wrong =
            first_wrong.or(firsts.into_iter().flatten().next().map(|at| format!("{size} bytes, {at}")));
    }
    session.say(table::footer(name, wrong, &busbw))?;
    lines.dedup();
    lines.iter().try_for_each(|line| session.say(line))?;
    Ok(verdict(wrong, first_wrong))
}

/// How many threads run at once here.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

/// What a result is, for whoever compares two: equal identity and inputs, equal checksum.
fn identity(record: &MeasuredCollective) -> String {
    identity_of(&record.call, record.checksum.as_deref())
}

fn identity_of(call: &Call, checksum: Option<&str>) -> String {
    format!(
        "# {} B: {}, order {}, tree {}, checksum {}",
        call.bytes,
        call.algorithm,
        call.order.as_deref().unwrap_or("none"),
        call.tree.as_deref().unwrap_or("none"),
        checksum.unwrap_or("N/A"),
    )
}

fn limit_line(limit: &Limit, records: &[MeasuredCollective]) -> String {
    let mut line = format!(
        "# Limit, measured in this run over {} threads: copy {:.2} GB/s, a += b {:.2} GB/s",
        limit.threads, limit.copy_gbps, limit.reduce_gbps
    );
    let all_reduce = records.iter().filter(|r| {
        r.call.collective == Collective::AllReduce.name() && r.call.ranks > 1 && r.call.bytes == limit.bytes
    });
    if let Some(best) = all_reduce.max_by(|a, b| a.algbw_gbps.total_cmp(&b.algbw_gbps)) {
        if let Some(fused) = limit.fused_gbps {
            line.push_str(&format!(
                ", all-reduce {fused:.2} GB/s; algbw of {:.2} GB/s at that size is {:.0} % of it",
                best.algbw_gbps,
                best.algbw_gbps / fused * 100.0
            ));
            return line;
        }
        let share = best.algbw_gbps * f64::from(best.call.ranks - 1) / limit.reduce_gbps;
        line.push_str(&format!(
            "; algbw of {:.2} GB/s at that size adds {} buffers, {:.0} % of it",
            best.algbw_gbps,
            best.call.ranks - 1,
            share * 100.0
        ));
    }
    line
}
