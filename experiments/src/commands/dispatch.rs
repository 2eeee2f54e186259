//! The command line: the list of commands, what they share, and the errors of a wrong command line.

use super::{
    bench, calibrate, compare, diff, doctor, faults, hangs, launch, machines, plan, predict, report, scale,
    shell, show, simulate, train, triage, validate, verify, why,
};
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::files::unsaid;
use allfold_cli::output::RunOutput;
use allfold_cli::{invocation, launched, log, progress, torchrun};
use allfold_collectives::environment::variable;
use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::SIGUSR2;
use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};

/// A testbed for collective communication and data-parallel training.
#[derive(Parser, Debug)]
#[command(
    name = "allfold",
    version = version(),
    after_help = "Sizes are written 8, 64K, 1M, 1G (powers of two); rank counts 8, 1..64 or 1,2,4.\n\
                  Exit codes: 0 all well, 1 a check or a run failed, 2 a wrong flag, file or value, 65 a run diverged,\n\
                  128 + N ended by signal N; so 141 where the reader of the output has closed it.\n\n\
                  Start with:\n  allfold report\n  allfold show all_reduce --algo ring --ranks 8"
)]
pub struct Cli {
    /// Show no progress and no notes on standard error
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Log on standard error what the run does, with times and ranks; -vv also logs each operation. Rank 0 logs more than the others
    #[arg(short, long, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Prove every algorithm, for every rank count
    Verify(verify::Args),
    /// Draw an algorithm round by round, with its cost and identity
    Show(show::Args),
    /// Measure a collective on real data, and check every result
    Bench(bench::Args),
    /// Time a collective on a simulated machine
    Simulate(simulate::Args),
    /// Run seeded fault schedules, and check the contract on failure
    Faults(faults::Args),
    /// Train a network, on the digits that ship with Allfold or on other data
    Train(train::Args),
    /// Name the classes of pictures, by the weights of a checkpoint
    Predict(predict::Args),
    /// Compare ways to train in parallel: time, bytes and memory of several strategies
    Compare(compare::Args),
    /// Measure and predict how training scales with ranks
    Scale(scale::Args),
    /// Rank the layouts of a large model's training on many GPUs, with time, memory, cost and odds
    Plan(plan::Args),
    /// List the machines that --topology takes by name
    Machines(machines::Args),
    /// Run the standard experiment and report it as one HTML file
    Report(report::Args),
    /// Start one process per rank, on one node or many, and watch them
    Launch(launch::Args),
    /// Compare predictions with measured runs, and print by what factor they are wrong
    Validate(validate::Args),
    /// Name the causes for which a measured run is slower than its machine allows, with their probabilities
    Why(why::Args),
    /// Compare the times of two files of records, and fail if one became slower
    Diff(diff::Args),
    /// Fit the physical parameters of machines to measured runs
    Calibrate(calibrate::Args),
    /// Print what this machine has, what is missing, and how to get it
    Doctor(doctor::Args),
    /// Name the rank, the operation and the cause for which a job hangs or failed, from the dumps that its ranks left
    Triage(triage::Args),
    /// Judge the dumps of seeded hangs, and count how often triage is right
    Hangs(hangs::Args),
    /// Print the script that completes the command line in a shell
    Completions(shell::CompletionArgs),
    /// Print a manual page
    Man(shell::ManArgs),
    /// Starts a rank's program, in the process that the launcher made for the rank
    #[command(hide = true)]
    LaunchRank(launch::RankArgs),
    /// Kills a launcher's processes if the launcher ends without doing so
    #[command(hide = true)]
    LaunchGuard,
}

/// The version, the commit that the program was built from, and the features that it was built with.
fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| {
        let all = [
            ("cuda", cfg!(feature = "cuda")),
            ("mpi", cfg!(feature = "mpi")),
            ("tls", cfg!(feature = "tls")),
        ];
        let with: Vec<&str> = all.iter().filter(|(_, with)| *with).map(|(name, _)| *name).collect();
        let features =
            if with.is_empty() { "no features".into() } else { format!("features {}", with.join(", ")) };
        format!("{} (commit {}, {features})", env!("CARGO_PKG_VERSION"), allfold_cli::output::COMMIT)
    })
}

/// Raises this process's limit of file descriptors to the maximum allowed: ranks that are threads hold sockets to each other.
fn raise_descriptors() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If the system refuses the higher limit, the call that runs out of descriptors reports it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Keeps a launched rank without a folder for its flight record alive when SIGUSR2 requests the record.
fn outlive_dumps() {
    let asks = |name: &str| variable(name).is_some();
    if asks("ALLFOLD_RENDEZVOUS") && !asks("ALLFOLD_FLIGHT_DIR") {
        // If the system refuses a handler, the signal ends the rank, as it ends any program.
        let _ = signal_hook::flag::register(SIGUSR2, Arc::default());
    }
}

/// Reads the command line and runs the command.
pub fn run() -> CommandResult {
    raise_descriptors();
    let words = invocation::words();
    let line = std::iter::once(OsString::from("allfold")).chain(words.iter().cloned());
    let cli = match Cli::try_parse_from(line) {
        Ok(cli) => cli,
        Err(error) => {
            let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            return answer(&error, &words);
        }
    };
    let named = words.iter().filter_map(|word| word.to_str()).find(|word| !word.starts_with('-'));
    if let Some(name) = named.filter(|_| !invocation::is_called()) {
        launched::here(name)?;
    }
    log::begin(cli.verbose, cli.quiet)?;
    outlive_dumps();
    if cli.quiet {
        progress::quiet();
    }
    match cli.command {
        Command::Verify(args) => verify::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Faults(args) => faults::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Scale(args) => scale::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Machines(args) => machines::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Launch(args) => launch::run(&args, &names()),
        Command::Triage(args) => triage::run(&args),
        Command::Hangs(args) => hangs::run(&args),
        Command::Completions(args) => shell::completions(&args, Cli::command()),
        Command::Man(args) => shell::man(&args, Cli::command()),
        Command::LaunchRank(args) => launch::run_rank(&args),
        Command::LaunchGuard => {
            allfold_launch::guard::run();
            Ok(())
        }
    }
}

/// Prints help and version; makes any other error of clap one line. `words` is the command line after the program's name.
fn answer(error: &clap::Error, words: &[String]) -> CommandResult {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion if invocation::keeper().is_none() => {
            RunOutput::open(None, None)?.check_text()?;
            error.print().and_then(|()| io::stdout().flush()).map_err(|error| unsaid(&error))
        }
        kind @ (ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand) => {
            let mut cli = Cli::command();
            cli.build();
            let within = words.first().and_then(|word| cli.find_subcommand_mut(word));
            let help = match kind {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.render(),
                _ => within.map_or_else(|| Cli::command().render_help(), |command| command.render_help()),
            };
            let mut output = RunOutput::open(None, None)?;
            output.say(help.to_string().trim_end())?;
            output.close()
        }
        _ => Err(CommandError::Usage(one_line(error, words))),
    }
}

/// Clap's message in one line: the error itself and its hint, without the usage.
fn one_line(error: &clap::Error, words: &[String]) -> String {
    if let Some(number) = negative(error) {
        return format!("`{number}` is less than 0; every number and size here is 0 or more");
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let said = text.split("\n\nUsage:").next().unwrap_or(text).split("\n\nFor more").next().unwrap_or(text);
    let parts: Vec<String> = said
        .split("\n\n")
        .map(|part| part.trim().replace("tip: ", "").split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|part| !part.is_empty())
        .collect();
    let mut line = as_typed(parts.join("; "), error, words);
    for (said, better) in PARSERS {
        line = line.replace(said, better);
    }
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue]
            .iter()
            .any(|kind| error.get(*kind).is_some());
    if error.kind() == ErrorKind::UnknownArgument {
        let argument = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
        match elsewhere(words, &argument) {
            Some(hint) => line = format!("{}; {hint}", line.split("; ").next().unwrap_or(&line)),
            None if suggested => {}
            None => line.push_str("; --help lists the flags there are"),
        }
    }
    if error.kind() == ErrorKind::InvalidSubcommand && !suggested {
        let cli = Cli::command();
        let within = words.first().and_then(|word| cli.find_subcommand(word));
        line.push_str(&format!("; there are {}", shown(within.unwrap_or(&cli)).join(", ")));
    }
    if error.kind() == ErrorKind::MissingRequiredArgument
        && let Some(example) = example(words)
    {
        line.push_str(&format!("; for example: {example}"));
    }
    line
}

/// The message with the short name of the flag that it is about, where the command line has that name: clap names flags by their long
/// names.
fn as_typed(line: String, error: &clap::Error, words: &[String]) -> String {
    let Some(said) = error.get(ContextKind::InvalidArg).map(ToString::to_string) else { return line };
    let Some((long, value)) = said.strip_prefix("--").map(|said| said.split_once(' ').unwrap_or((said, "")))
    else {
        return line;
    };
    let cli = Cli::command();
    let flag = named_by(&cli, words).get_arguments().find(|flag| flag.get_long() == Some(long));
    let Some(short) = flag.and_then(|flag| flag.get_short()).map(|short| format!("-{short}")) else {
        return line;
    };
    let own = || words.iter().take_while(|word| *word != "--");
    let long_is_typed = own().any(|word| word.split('=').next() == Some(&format!("--{long}")));
    match !long_is_typed && own().any(|word| word.starts_with(&short)) {
        true => line.replace(&said, format!("{short} {value}").trim_end()),
        false => line,
    }
}

/// The command that `words` begin with.
fn named_by<'a>(cli: &'a clap::Command, words: &[String]) -> &'a clap::Command {
    let found = words.iter().try_fold(cli, |command, word| command.find_subcommand(word).ok_or(command));
    let (Ok(command) | Err(command)) = found;
    command
}

/// The first example in the help of the command that `words` begin with.
fn example(words: &[String]) -> Option<String> {
    let cli = Cli::command();
    let help = named_by(&cli, words).get_after_help()?.to_string();
    help.lines().map(str::trim).find(|line| line.starts_with("allfold ")).map(String::from)
}

/// What to write for a flag of another program or another command: nccl-tests counts GPUs per thread, and a configuration has keys
/// where `scale workload` has flags.
fn elsewhere(words: &[String], argument: &str) -> Option<&'static str> {
    let command = words.first().map_or("", String::as_str);
    if command == "scale" && words.get(1).is_some_and(|word| word == "workload") {
        return of_workload(argument);
    }
    match (command, argument) {
        ("bench" | "simulate", "-g" | "-t" | "--ngpus" | "--nthreads") => {
            Some("write the number of ranks as --ranks N")
        }
        ("bench" | "simulate", "-c" | "-G" | "-a" | "-m") => {
            Some("--help lists the flags of nccl-tests that exist here")
        }
        ("launch", word) if !word.starts_with('-') => Some("write -- before the ranks' command"),
        ("launch", flag) => torchrun::hint(flag),
        ("scale", "--plot") => Some("--html draws the curves of --config"),
        ("scale" | "train" | "compare", "--amp") => {
            Some("--config takes it as a key: --set precision.amp=f16")
        }
        ("scale" | "train" | "compare", "--batch") => {
            Some("--config takes it as a key: --set training.batch=64")
        }
        _ => None,
    }
}

/// What to write for a flag of `scale --config` in `scale workload`.
fn of_workload(argument: &str) -> Option<&'static str> {
    match argument {
        "--strategy" => Some(
            "the ranks of a table train by DDP; another strategy needs a configuration: allfold scale --config FILE --strategy NAME",
        ),
        "--device" => Some("write --accelerator GPU, and --amp or --tf32 for its tensor cores"),
        "--config" | "--set" => {
            Some("a configuration is predicted by allfold scale --config FILE, without `workload`")
        }
        "--modeled-only" => Some("leave it out; `scale workload` always models"),
        _ => None,
    }
}

/// The names of the commands, in the order of the help.
fn names() -> Vec<String> {
    shown(&Cli::command())
}

/// The subcommands that the help of `command` shows, in the help's order.
fn shown(command: &clap::Command) -> Vec<String> {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.map(|command| command.get_name().to_string()).collect()
}

/// Messages of the standard library's parsers for a wrong number, each with what to print instead.
const PARSERS: [(&str, &str); 3] = [
    ("cannot parse integer from empty string", "write a whole number"),
    ("invalid digit found in string", "write a whole number"),
    ("number too large to fit in target type", "the number is too large"),
];

/// The number below zero in the command line that clap took for an unknown flag.
fn negative(error: &clap::Error) -> Option<String> {
    let argument = error.get(ContextKind::InvalidArg)?.to_string();
    let digits = argument.strip_prefix('-')?;
    digits.starts_with(|first: char| first.is_ascii_digit()).then_some(argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(args: &[&str]) -> String {
        let words: Vec<String> = args.iter().map(|word| word.to_string()).collect();
        let all = std::iter::once("allfold").chain(args.iter().copied());
        match Cli::try_parse_from(all).map_err(|error| answer(&error, &words)) {
            Err(Err(CommandError::Usage(line))) => line,
            other => panic!("{args:?} gave {other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_command_or_flag_is_one_line_with_a_hint() {
        for (args, hint) in [
            (&["launch", "-n", "0", "--", "true"][..], "for '-n <"),
            (&["launch", "--ranks", "0", "--", "true"][..], "for '--ranks <"),
            (&["bench", "all_reduce", "--ranks", "2", "-b", "1.5M"][..], "for '-b <SIZE>'"),
            (&["bench", "all_reduce", "--ranks", "2", "-b1.5M"][..], "for '-b <SIZE>'"),
            (&["bench", "all_reduce", "--ranks", "2", "--minbytes", "1.5M"][..], "for '--minbytes <SIZE>'"),
            (&["doctr"][..], "doctor"),
            (&["zzz"][..], "doctor"),
            (&["doctor", "--jsn", "x"][..], "--json"),
            (&["doctor", "--json"][..], "FILE"),
            (&["scale", "zzz"][..], "workload, collective, validate"),
            (&["scale"][..], "--config"),
            (&["scale", "--config", "x", "--ranks", "1", "--batch", "64"][..], "--batch"),
            (&["scale", "workload", "resnet50", "--ranks", "1", "--steps", "20"][..], "--steps"),
            (&["scale", "--config", "x", "--ranks", "1", "workload", "resnet50"][..], "workload"),
            (
                &["scale", "workload", "resnet50", "--ranks", "1", "--strategy", "zero3"][..],
                "found; the ranks of a table train by DDP; another strategy needs a configuration: allfold scale --config FILE",
            ),
            (
                &["scale", "workload", "gpt2", "--ranks", "1", "--device", "h100"][..],
                "found; write --accelerator GPU",
            ),
            (
                &["scale", "workload", "--config", "x.toml", "--ranks", "1"][..],
                "found; a configuration is predicted by allfold scale --config FILE",
            ),
            (&["launch", "-n", "2", "python", "train.py"], "write -- before"),
            (
                &["scale", "--config", "x", "--ranks", "2", "--plot", "p.svg"],
                "found; --html draws the curves",
            ),
            (&["launch", "--nproc_per_node=2", "--", "true"], "found; write -n N, the number"),
            (&["launch", "--master-addr", "node0", "--", "true"], "found; write --rdzv HOST:PORT"),
            (&["launch", "--node_rank", "1", "--", "true"], "found; write --node-rank NODE"),
            (&["launch", "--standalone", "--", "true"], "found; leave it out"),
            (&["launch", "-m", "train"], "found; write -- python -m MODULE"),
        ] {
            let line = refused(args);
            assert!(line.contains(hint), "{args:?}: {line}");
            assert!(!line.contains('\n') && !line.contains("Usage"), "{args:?}: {line}");
        }
    }
}
