//! The flags of nccl-tests 2.19 that `bench --backend nccl` has besides those of all backends, and those that it refuses with a reason.

#[cfg(feature = "cuda")]
use crate::measure::nccl::{Average, Issue};
use allfold_cli::error::{CommandError, CommandResult};
#[cfg(feature = "cuda")]
use allfold_gpu::nccl::Registration;
use clap::builder::TypedValueParser;
use clap::value_parser;
use std::path::PathBuf;

/// Flags of nccl-tests, under their names there.
#[derive(clap::Args, Debug, Clone, Default)]
#[command(next_help_heading = "NCCL")]
pub(super) struct NcclFlags {
    /// With nccl: issue this many calls, 1 to 1024, as one group [default: 1]
    #[arg(short = 'm', long = "agg_iters", value_name = "CALLS", value_parser = value_parser!(u32).range(1..=1024))]
    aggregate: Option<u32>,
    /// With nccl: wait on the host for each call: 1 or 0 [default: 0]
    #[arg(short = 'z', long, value_name = "0|1", value_parser = value_parser!(u8).range(0..=1))]
    blocking: Option<u8>,
    /// With nccl: the ranks whose times count, 0 to 3: rank 0, the mean of all, the least, the greatest [default: 1]
    #[arg(short = 'a', long, value_name = "0..3", value_parser = value_parser!(u8).range(0..=3))]
    average: Option<u8>,
    /// With nccl: report the host's time for issuing a call, not the GPU's for running it: 1 or 0 [default: 0]
    #[arg(short = 'C', long = "report_cputime", value_name = "0|1", value_parser = value_parser!(u8).range(0..=1))]
    host_time: Option<u8>,
    /// With nccl: seconds, 1 to 1000000, that ranks wait for each other [default: ALLFOLD_TIMEOUT, else 300]
    #[arg(short = 'T', long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=1_000_000))]
    timeout: Option<u64>,
    /// With nccl: accepted and without effect, as ranks always join in parallel
    #[arg(short = 'p', long = "parallel_init", value_name = "0|1", value_parser = value_parser!(u8).range(0..=1))]
    parallel_init: Option<u8>,
    /// With nccl: capture the calls of a stretch as a graph and replay it this often, 1 to 1000; 0 for no graph [default: 0]
    #[arg(short = 'G', long = "cudagraph", value_name = "REPLAYS", value_parser = value_parser!(u32).range(0..=1000))]
    replays: Option<u32>,
    /// With nccl: time each call too, and print the least and the greatest time, the 99th percentile and the variation: 1 or 0 [default: 0]
    #[arg(short = 'I', long = "per_iter_timing", value_name = "0|1", value_parser = value_parser!(u8).range(0..=1))]
    times_each: Option<u8>,
    /// With nccl: write the results as JSON too, in the form of nccl-tests
    #[arg(short = 'J', long = "output_file", value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    #[command(flatten)]
    _refused: Refused,
}

/// Refuses any value of a flag, for this reason.
fn refused(why: &'static str) -> impl TypedValueParser {
    move |_: &str| Err::<String, _>(why)
}

/// Flags that are refused: the reason is the message of the flag.
#[derive(clap::Args, Debug, Clone, Default)]
struct Refused {
    #[arg(short = 't', long = "nthreads", hide = true, value_parser = refused(RANKS))]
    threads: Option<String>,
    #[arg(short = 'g', long = "ngpus", hide = true, value_parser = refused(RANKS))]
    gpus: Option<String>,
    #[arg(short = 'N', long = "run_cycles", hide = true, value_parser = refused(
        "a sweep runs once; a loop of the shell repeats it, each with a record of its own: leave -N out"
    ))]
    cycles: Option<String>,
    #[arg(short = 'S', long = "report_timestamps", hide = true, value_parser = refused(
        "records have the time of the run, rows have none: take --json FILE"
    ))]
    timestamps: Option<String>,
    #[arg(short = 'K', hide = true, value_parser = refused(PERCENTILES))]
    percentile: Option<String>,
    #[arg(short = 'M', hide = true, value_parser = refused(
        "the memory that NCCL takes is not measured: leave -M out"
    ))]
    memory: Option<String>,
    #[arg(short = 'u', hide = true, value_parser = refused("buffers are always aligned: leave -u out"))]
    unaligned: Option<String>,
}

const RANKS: &str = "write --ranks N for threads of this process, a GPU each, or start processes: allfold launch -n N -- bench ..";
const PERCENTILES: &str =
    "percentiles of the times of single calls are printed with -I 1, and all of them are in the file of -J";

impl NcclFlags {
    /// Refuses the flags with another backend than nccl, those that exclude each other, and nccl-tests' variables that would have no
    /// effect. `scheduled` says whether an algorithm runs over
    /// NCCL's messages.
    ///
    /// # Errors
    /// A flag is given, and the backend is not nccl; calls in a graph that need the host.
    pub fn check(&self, is_nccl: bool, scheduled: bool) -> CommandResult {
        let split = ["NCCL_TESTS_SPLIT", "NCCL_TESTS_SPLIT_MASK"];
        if let Some(split) = split.into_iter().find(|name| is_nccl && std::env::var_os(name).is_some()) {
            return Err(CommandError::usage(format!(
                "{split} divides the ranks among several communicators, and bench has one of all ranks: unset it"
            )));
        }
        if self.replays.is_some_and(|replays| replays > 0) {
            let excluded = [
                ("-z 1", self.blocking == Some(1)),
                ("-I 1", self.times_each == Some(1)),
                ("--algo", scheduled),
            ];
            if let Some((flag, _)) = excluded.iter().find(|(_, given)| *given) {
                return Err(CommandError::usage(format!(
                    "{flag} needs the host at each call, and calls in a graph run without it: leave out {flag} or -G"
                )));
            }
        }
        let given = [
            ("-m", self.aggregate.is_some()),
            ("-z", self.blocking.is_some()),
            ("-a", self.average.is_some()),
            ("-C", self.host_time.is_some()),
            ("-T", self.timeout.is_some()),
            ("-p", self.parallel_init.is_some()),
            ("-G", self.replays.is_some()),
            ("-I", self.times_each.is_some()),
            ("-J", self.file.is_some()),
        ];
        match given.iter().find(|(_, given)| *given && !is_nccl) {
            None => Ok(()),
            Some((flag, _)) => Err(CommandError::usage(format!(
                "{flag} says how calls of NCCL are issued and timed: use it with --backend nccl"
            ))),
        }
    }

    /// Whether each call is timed.
    #[cfg(feature = "cuda")]
    pub fn times_each(&self) -> bool {
        self.times_each == Some(1)
    }

    /// Whether the host's time for issuing calls is reported.
    #[cfg(feature = "cuda")]
    pub fn reports_host_time(&self) -> bool {
        self.host_time == Some(1)
    }

    /// How calls are issued and timed; `register` is the value of `-R`.
    ///
    /// # Errors
    /// A malformed variable `ALLFOLD_TIMEOUT`.
    #[cfg(feature = "cuda")]
    pub fn issue(&self, register: Option<u8>) -> CommandResult<Issue> {
        let seconds = self.timeout.map(std::time::Duration::from_secs);
        Ok(Issue {
            aggregate: self.aggregate.unwrap_or(1),
            blocking: self.blocking == Some(1),
            host_time: self.reports_host_time(),
            average: match self.average {
                Some(0) => Average::First,
                Some(2) => Average::Least,
                Some(3) => Average::Greatest,
                _ => Average::Mean,
            },
            registration: match register {
                Some(1) => Some(Registration::Buffer),
                Some(2) => Some(Registration::Window),
                _ => None,
            },
            replays: self.replays.unwrap_or(0),
            times_each: self.times_each(),
            deadline: seconds.map_or_else(crate::training::launch_mode::operation_deadline, Ok)?,
        })
    }
}
