//! `allfold report`: the standard experiment from end to end, or given records, as one HTML file.
//!
//! ```text
//! prove  ->  train on threads and on sim  ->  measure threads  ->  predict collectives  ->  predict training
//!    \______________\__________________________\_________________\______________________/
//!                                 records.jsonl  ->  report.html
//! ```

use super::compare::{Compared, Comparison};
use super::verify;
use crate::call::plan::Choice;
use crate::cli::error::{CommandError, CommandResult};
use crate::cli::output::{self, RunOutput};
use crate::cli::progress;
use crate::measure::bench::{Bench, Checked, Path as Way};
use crate::measure::machine_limits::{self, cores};
use crate::measure::ranks::Timing;
use crate::predict::machine::SimulatedMachine;
use crate::predict::trace;
use crate::scaling::curve::{self, Reach};
use crate::scaling::points::Scaling;
use crate::training::launch_mode::LaunchMode;
use crate::training::trained::Trained;
use allfold_collectives::registry::{self, Shape};
use allfold_collectives::{Collective, DType, ReduceOp};
use allfold_report::RenderedReport;
use allfold_report::format::counted;
use allfold_report::records::{Parity, ProofRecord, Records};
use allfold_report::sizes::RankCounts;
use allfold_sim::{Device, Topology};
use allfold_trainer::Config;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Flags of `report`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  allfold report                                  the standard experiment, into allfold-report/
  allfold report --quick --out /tmp/report
  allfold report --from runs.jsonl more.jsonl     a page of these records

Writes report.html, records.jsonl, every plot as an .svg file (scaling.svg, ...) and, from the standard experiment,
trace.json (a Chrome trace of a training run on virtual time). The exit code is 1 if a proof fails, a result is wrong, or
bits differ.")]
pub(crate) struct Args {
    /// The folder to write to; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "allfold-report")]
    out: PathBuf,
    /// Use fewer rank counts, steps and sizes
    #[arg(long, conflicts_with = "from")]
    quick: bool,
    /// Report the records of these files instead of running the experiment
    #[arg(long, value_name = "FILE", num_args = 1..)]
    from: Vec<PathBuf>,
    /// The simulated machine: a name (`allfold machines` lists them) or a file
    #[arg(long, value_name = "T", default_value = TOPOLOGY, conflicts_with = "from")]
    topology: String,
}

const CNN: &str = include_str!("../../configs/digits-cnn.toml");
const MLP: &str = include_str!("../../configs/digits-mlp.toml");
const WIDE: &str = include_str!("../../configs/wide-mlp.toml");
/// The machine that the experiment predicts for.
const TOPOLOGY: &str = "nodes8";
const DEVICE: Device = Device::A100_F32;

/// The extent of each part of the standard experiment.
struct ReportScale {
    proofs: RankCounts,
    training: &'static [u32],
    steps: u64,
    compared_steps: u64,
    bench_sizes: &'static [u64],
    iterations: u32,
    predicted: &'static [u32],
    scaling: &'static [u32],
    scaling_steps: u64,
    topology: String,
}

impl ReportScale {
    fn of(quick: bool, topology: &str) -> ReportScale {
        let topology = topology.to_string();
        if quick {
            return ReportScale {
                proofs: RankCounts((1..=16).collect()),
                training: &[1, 2, 4],
                steps: 6,
                compared_steps: 4,
                bench_sizes: &[4 << 10, 64 << 10, 1 << 20],
                iterations: 4,
                predicted: &[8, 64, 256],
                scaling: &[1, 2, 8, 64, 1024],
                scaling_steps: 4,
                topology,
            };
        }
        ReportScale {
            proofs: RankCounts((1..=64).collect()),
            training: &[1, 2, 4, 8],
            steps: 0,
            compared_steps: 12,
            bench_sizes: &[1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20],
            iterations: 10,
            predicted: &[8, 16, 32, 64, 128, 256, 512, 1024],
            scaling: &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024],
            scaling_steps: 12,
            topology,
        }
    }
}

/// Runs the experiment, or reads records, and writes the page.
pub fn run(args: &Args) -> CommandResult {
    if args.from.is_empty() { experiment(args) } else { given(args) }
}

fn given(args: &Args) -> CommandResult {
    let mut all = String::new();
    for path in &args.from {
        let text = fs::read_to_string(path).map_err(|error| {
            CommandError::usage(format!("{}: {error}; name files of records", path.display()))
        })?;
        Records::parse(&text).map_err(|error| CommandError::usage(format!("{}: {error}", path.display())))?;
        all.push_str(text.trim_end());
        all.push('\n');
    }
    let records = Records::parse(&all).map_err(CommandError::usage)?;
    let mut output = RunOutput::open(None, None)?;
    let made = allfold_report::render(&records, output.stamp())?;
    output::folder(&args.out)?;
    write(&args.out, &all, &made)?;
    output.say(format!("{} records, {}", records.len(), args.out.join("report.html").display()))
}

#[allow(clippy::disallowed_methods, reason = "tells the user how long it took")]
fn experiment(args: &Args) -> CommandResult {
    let start = Instant::now();
    let report_scale = ReportScale::of(args.quick, &args.topology);
    // An unknown machine is refused before the experiment starts.
    let most = report_scale.scaling.iter().chain(report_scale.predicted).max().copied().unwrap_or(1);
    Topology::named(&report_scale.topology, most).map_err(CommandError::usage)?;
    output::folder(&args.out)?;
    let mut output = RunOutput::open(None, None)?;
    output.will_write(&args.out.join("report.html"))?;
    let mut wrong = Vec::new();

    wrong.extend(prove(&report_scale, &mut output)?);
    wrong.extend(train(&report_scale, &args.out, &mut output)?);
    wrong.extend(compare(&report_scale, &mut output)?);
    wrong.extend(measure(&report_scale, &mut output)?);
    predict(&report_scale, &mut output)?;
    scaling(&report_scale, &mut output)?;

    let made = allfold_report::render(&output.records()?, output.stamp())?;
    write(&args.out, &output.lines(), &made)?;
    output.say(format!(
        "\n{} in {:.0} s; the report: {}",
        if wrong.is_empty() { "all checks passed" } else { "CHECKS FAILED" },
        start.elapsed().as_secs_f64(),
        args.out.join("report.html").display()
    ))?;
    output.say(format!(
        "beside it: records.jsonl ({} records), {} as .svg files, trace.json (for Perfetto or chrome://tracing)",
        output.records()?.len(),
        counted(made.plots.len(), "plot")
    ))?;
    output.close()?;
    wrong.into_iter().next().map_or(Ok(()), |first| Err(CommandError::check(first)))
}

/// Writes the records, the plots, and last the page that shows them.
fn write(folder: &Path, records: &str, made: &RenderedReport) -> CommandResult {
    output::replace(&folder.join("records.jsonl"), records.as_bytes())?;
    made.plots.iter().try_for_each(|(name, svg)| output::replace(&folder.join(name), svg.as_bytes()))?;
    output::replace(&folder.join("report.html"), made.page.as_bytes())
}

/// Proves every algorithm; returns the proofs that failed.
fn prove(report_scale: &ReportScale, output: &mut RunOutput) -> CommandResult<Vec<String>> {
    let algorithms: Vec<_> = registry::all().collect();
    let proofs = verify::prove(&algorithms, &report_scale.proofs)?;
    let command = format!("allfold verify --ranks {}", report_scale.proofs);
    proofs.iter().try_for_each(|proof| output.record_as(proof, Some(&command)))?;
    let failed: Vec<&ProofRecord> = proofs.iter().filter(|proof| !proof.ok).collect();
    output.say(format!(
        "proofs       {} of {} hold: {} algorithms, {} ranks",
        proofs.len() - failed.len(),
        proofs.len(),
        algorithms.len(),
        report_scale.proofs
    ))?;
    let say = |p: &&ProofRecord| {
        format!(
            "{} by {} over {} ranks: {}",
            p.collective,
            p.algorithm,
            p.ranks,
            p.counterexample.as_deref().unwrap_or("")
        )
    };
    Ok(failed.iter().map(say).collect())
}

/// Trains the CNN on threads and on virtual time; returns the numbers of ranks whose bits differ.
fn train(report_scale: &ReportScale, out: &Path, output: &mut RunOutput) -> CommandResult<Vec<String>> {
    let mut config = Config::parse(CNN, "digits-cnn.toml").map_err(CommandError::run)?;
    config.max_steps = report_scale.steps;
    output.seed(Some(config.seed));
    let mut differ = Vec::new();
    for &ranks in report_scale.training {
        let topology = Topology::named(&report_scale.topology, ranks).map_err(CommandError::run)?;
        let real = trained(&config, LaunchMode::Threads(ranks))?;
        let sim = trained(&config, LaunchMode::sim(topology, DEVICE))?;
        let steps =
            if report_scale.steps > 0 { format!(" --steps {}", report_scale.steps) } else { String::new() };
        let command =
            format!("allfold train --config experiments/configs/digits-cnn.toml --ranks {ranks}{steps}");
        let steps = real.measured(&config);
        steps.iter().try_for_each(|step| output.record_as(step, Some(&command)))?;
        let command =
            format!("{command} --backend sim --topology {} --device {}", report_scale.topology, DEVICE.name);
        let steps = sim.simulated(&config);
        steps.iter().try_for_each(|step| output.record_as(step, Some(&command)))?;
        let parity = parity(&config, ranks, &real, &sim);
        output.record_as(&parity, Some(&command))?;
        output.say(format!(
            "training     {}: losses and weights {} on threads and sim ({}); accuracy {:.1} %",
            counted(ranks as usize, "rank"),
            if parity.ok { "are the same bits" } else { "DIFFER" },
            parity.threads_weights,
            real.result.test.accuracy() * 100.0
        ))?;
        if !parity.ok {
            differ.push(format!(
                "on {ranks} ranks threads end with weights {} and sim with {}",
                parity.threads_weights, parity.sim_weights
            ));
        }
        if ranks == 4 {
            let spans = sim.spans(sim.result.losses.len() / 2);
            let command = format!("{command} --trace trace.json");
            spans.iter().try_for_each(|span| output.record_as(span, Some(&command)))?;
            trace::activities(&out.join("trace.json"), &sim.timeline)?;
        }
    }
    Ok(differ)
}

/// Compares all ways to train the MLP; returns those whose weights differ between threads and virtual time.
fn compare(report_scale: &ReportScale, output: &mut RunOutput) -> CommandResult<Vec<String>> {
    let mut config = Config::parse(MLP, "digits-mlp.toml").map_err(CommandError::run)?;
    let steps = report_scale.compared_steps;
    (config.max_steps, config.epochs) = (steps, steps);
    let (topology, ranks) = (report_scale.topology.clone(), 4);
    let command = format!(
        "allfold compare --config experiments/configs/digits-mlp.toml --ranks {ranks} --steps {steps} --topology {topology} --device {}",
        DEVICE.name
    );
    let Compared { simulated, wrong, .. } =
        Comparison::of_all(config, ranks, topology, DEVICE).run(Some(&command), output)?;
    let many = simulated.iter().filter(|way| way.setup.ranks > 1);
    let fastest = many.min_by(|a, b| a.step_us.total_cmp(&b.step_us));
    output.say(format!(
        "strategies   {} to train: {}; the fastest on {ranks} ranks as predicted: {}",
        counted(simulated.len(), "way"),
        if wrong.is_empty() {
            "each ends with the same weights on threads and sim"
        } else {
            "weights DIFFER"
        },
        fastest.map_or("none", |way| &way.setup.strategy)
    ))?;
    Ok(wrong)
}

fn trained(config: &Config, place: LaunchMode) -> CommandResult<Trained> {
    let kind = if matches!(place, LaunchMode::Threads(_)) { "threads" } else { "sim" };
    let bar = progress::bar(1, &format!("training, {} on {kind}", place.ranks()));
    let trained = crate::training::run::run(config, &place, &bar);
    bar.finish_and_clear();
    trained
}

fn parity(config: &Config, ranks: u32, threads: &Trained, sim: &Trained) -> Parity {
    let bits = |t: &Trained| (t.losses_hash(), t.weights_hash());
    let ((threads_losses, threads_weights), (sim_losses, sim_weights)) = (bits(threads), bits(sim));
    Parity {
        model: config.model.clone(),
        ranks,
        step: threads.result.losses.len() as u64,
        ok: threads_losses == sim_losses && threads_weights == sim_weights,
        threads_losses,
        sim_losses,
        threads_weights,
        sim_weights,
    }
}

/// Measures a few collectives on threads; returns the calls with wrong results.
fn measure(report_scale: &ReportScale, output: &mut RunOutput) -> CommandResult<Vec<String>> {
    let calls = [
        (Collective::AllReduce, "ring", 2),
        (Collective::AllReduce, "halving_doubling", 2),
        (Collective::AllReduce, "direct", 2),
        (Collective::AllReduce, "halving_doubling", 4),
        (Collective::Broadcast, "binomial", 2),
        (Collective::AllGather, "ring", 2),
    ];
    let sizes = report_scale.bench_sizes;
    let (least, most) = (sizes.first().copied().unwrap_or(0), sizes.last().copied().unwrap_or(0));
    let factor = sizes.get(1).map_or(2, |second| second / least.max(1));
    let mut wrong = Vec::new();
    let bar = progress::bar((calls.len() * sizes.len()) as u64, "measuring");
    let mut best = (0.0, 0);
    let mut limits = sizes
        .iter()
        .map(|&size| machine_limits::measure(cores().min(4), size))
        .collect::<CommandResult<Vec<_>>>()?;
    for (collective, name, ranks) in calls {
        let timing = Timing {
            iterations: report_scale.iterations,
            warmup: 3,
            check: true,
            seed: 0,
            virtual_time: false,
            registered: true,
        };
        let bench = Bench { path: Way::Messages, choice: choice(collective, Some(name), ranks)?, timing };
        let command = format!(
            "allfold bench {collective} --backend threads --path {} --ranks {ranks} --algo {name} -b {least} -e {most} -f {factor} -n {} -w 3",
            bench.path.name(),
            report_scale.iterations
        );
        for &size in sizes {
            for Checked { record, first_wrong } in bench.on_threads(size)? {
                output.record_as(&record, Some(&command))?;
                wrong.extend(
                    first_wrong.map(|at| format!("{collective} by {name}, {size} bytes: wrong at {at}")),
                );
                if collective == Collective::AllReduce && record.busbw_gbps > best.0 {
                    best = (record.busbw_gbps, ranks);
                }
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    // Measures the limits again after the calls that they are compared with, and keeps the better value: other programs may
    // have slowed one of the measurements.
    for limit in &mut limits {
        let again = machine_limits::measure(limit.threads, limit.bytes)?;
        limit.copy_gbps = limit.copy_gbps.max(again.copy_gbps);
        limit.reduce_gbps = limit.reduce_gbps.max(again.reduce_gbps);
    }
    limits.iter().try_for_each(|limit| output.record(limit))?;
    let Some(limit) = limits.last() else { return Ok(wrong) };
    output.say(format!(
        "threads      {}; all_reduce up to {:.2} GB/s busbw over {} ranks; memory copies {:.2} GB/s, adds {:.2} GB/s",
        if wrong.is_empty() { "every result exact" } else { "RESULTS ARE WRONG" },
        best.0,
        best.1,
        limit.copy_gbps,
        limit.reduce_gbps
    ))?;
    Ok(wrong)
}

fn choice(collective: Collective, name: Option<&str>, ranks: u32) -> CommandResult<Choice> {
    Ok(Choice {
        collective,
        algorithm: name
            .map(|name| registry::find(collective, name))
            .transpose()
            .map_err(CommandError::run)?,
        shape: Shape::new(ranks).map_err(CommandError::run)?,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        segment: None,
        window: None,
        lanes: 1,
    })
}

/// The number of ranks for which the report says where the time went.
const EXPLAINED: u32 = 64;

/// Times all-reduces from a node to a thousand ranks.
fn predict(report_scale: &ReportScale, output: &mut RunOutput) -> CommandResult {
    const NAMES: [&str; 4] = ["ring", "double_binary_tree", "halving_doubling", "hierarchical"];
    let sizes = [64 << 10, 64 << 20];
    let bar = progress::bar((NAMES.len() * sizes.len() * report_scale.predicted.len()) as u64, "predicting");
    output.seed(None);
    let mut most = Vec::new();
    let topology = &report_scale.topology;
    for size in sizes {
        for name in NAMES {
            for &ranks in report_scale.predicted {
                let choice = choice(Collective::AllReduce, Some(name), ranks)?;
                let (record, speed) =
                    SimulatedMachine::named(&report_scale.topology, ranks)?.time(&choice, size)?;
                let command = format!(
                    "allfold simulate all_reduce --topology {topology} --ranks {ranks} --algo {name} -b {size} -e {size}"
                );
                output.record_as(&record, Some(&command))?;
                output.record_as(&speed, Some(&command))?;
                if ranks == EXPLAINED {
                    let spent =
                        SimulatedMachine::named(&report_scale.topology, ranks)?.spent(&choice, size)?;
                    output.record_as(&spent, Some(&format!("{command} --explain")))?;
                }
                if Some(&ranks) == report_scale.predicted.last() && size == sizes[1] {
                    most.push(format!("{name} {:.1}", record.busbw_gbps));
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    output.say(format!(
        "predicted    all_reduce of 64 MiB over {} ranks of {topology}, busbw in GB/s: {}",
        report_scale.predicted.last().unwrap_or(&0),
        most.join(", ")
    ))
}

/// Makes the scaling curves of the CNN, measured up to the number of cores, and of a wide MLP.
fn scaling(report_scale: &ReportScale, output: &mut RunOutput) -> CommandResult {
    let counts = RankCounts(report_scale.scaling.to_vec());
    for (name, text) in [("digits-cnn", CNN), ("wide-mlp", WIDE)] {
        let mut config = Config::parse(text, name).map_err(CommandError::run)?;
        config.max_steps = report_scale.scaling_steps;
        config.epochs = report_scale.scaling_steps;
        output.seed(Some(config.seed));
        let real = name == "digits-cnn";
        let reach = if real { Reach { measured: cores(), on_virtual_clock: 4 } } else { Reach::default() };
        let only = if real { "" } else { " --modeled-only" };
        let command = format!(
            "allfold scale --config experiments/configs/{name}.toml --ranks {counts} --topology {} --device {} --steps {}{only}",
            report_scale.topology, DEVICE.name, report_scale.scaling_steps
        );
        let scaling = Scaling::new(config, report_scale.topology.clone(), DEVICE);
        output.say(format!("\nscaling of {name}"))?;
        curve::draw(&scaling, &counts, reach, Some(&command), output)?;
        if real {
            this_machine(scaling.config, output)?;
        }
    }
    Ok(())
}

/// Predicts training on cores like this machine's, to compare with what was measured on them.
fn this_machine(config: Config, output: &mut RunOutput) -> CommandResult {
    let counts = RankCounts((1..=cores().min(64)).collect());
    let scaling = Scaling::new(config, "switch".into(), Device::CPU_CORE);
    let command = format!(
        "allfold scale --config experiments/configs/digits-cnn.toml --ranks {counts} --topology switch --device cpu_core --modeled-only"
    );
    curve::draw(&scaling, &counts, Reach::default(), Some(&command), output)
}
