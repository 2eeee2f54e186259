//! The standard experiment from end to end.

use super::files;
use super::predictions;
use super::scale::{CNN, MLP, ReportScale, choice};
use crate::commands::compare::{Compared, Comparison};
use crate::commands::verify;
use crate::measure::bench::{Bench, Checked, Path as Way};
use crate::measure::machine_limits::{self, cores};
use crate::measure::ranks::Timing;
use crate::measure::this_machine;
use crate::predict::trace;
use crate::training::launch_mode::LaunchMode;
use crate::training::trained::Trained;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::interruption;
use allfold_cli::output::{self, RunOutput};
use allfold_cli::progress;
use allfold_collectives::registry;
use allfold_collectives::{Activity, Collective};
use allfold_report::format::counted;
use allfold_report::records::{Parity, ProofRecord, Setup};
use allfold_sim::Device;
use allfold_sim::Topology;
use allfold_trainer::Config;
use allfold_validation::published_scores;
use std::path::Path;
use std::time::Instant;

/// The experiment so far.
struct Experiment {
    report_scale: ReportScale,
    output: RunOutput,
    /// The checks that failed.
    wrong: Vec<String>,
    /// The activities of the ranks of one run on virtual time.
    activities: Vec<Activity>,
}

/// Does one part of the experiment.
type Part = fn(&mut Experiment) -> CommandResult;

/// The parts, in order. A run that is interrupted ends after one of them.
const PARTS: [Part; 8] = [
    |so_far| so_far.check(prove),
    |so_far| {
        let (differ, activities) = train(&so_far.report_scale, &mut so_far.output)?;
        so_far.activities = activities;
        so_far.wrong.extend(differ);
        Ok(())
    },
    |so_far| so_far.check(compare),
    |so_far| so_far.check(measure),
    |so_far| predictions::collectives(&so_far.report_scale, &mut so_far.output),
    |so_far| predictions::sweep(&so_far.report_scale, &mut so_far.output),
    |so_far| predictions::training(&so_far.report_scale, &mut so_far.output),
    |so_far| predictions::networks(&so_far.report_scale, &mut so_far.output),
];

impl Experiment {
    /// Does a part that returns a line for each check that failed.
    fn check<L: IntoIterator<Item = String>>(
        &mut self,
        part: fn(&ReportScale, &mut RunOutput) -> CommandResult<L>,
    ) -> CommandResult {
        self.wrong.extend(part(&self.report_scale, &mut self.output)?);
        Ok(())
    }

    /// Does every part, or those before the first signal that ends the program. Returns how many, and the signal's exit code.
    fn all(&mut self) -> CommandResult<(usize, Option<i32>)> {
        interruption::listen(&[]);
        for (done, part) in (1..).zip(PARTS) {
            part(self)?;
            if let Some(signal) = interruption::asked().filter(|_| done < PARTS.len()) {
                return Ok((done, Some(128 + signal)));
            }
        }
        Ok((PARTS.len(), None))
    }
}

/// Runs every part, and writes the page.
///
/// # Errors
/// An unknown machine or a folder that cannot be written, before the first part; a failed proof or a wrong result, after the
/// page is written; a signal, after a page of the parts that were done.
#[allow(clippy::disallowed_methods, reason = "tells the user how long it took")]
pub fn run(out: &Path, quick: bool, topology: &str) -> CommandResult {
    let start = Instant::now();
    let report_scale = ReportScale::of(quick, topology)?;
    // An unknown machine is refused before the experiment starts.
    let most = report_scale.scaling.iter().chain(report_scale.predicted).max().copied().unwrap_or(1);
    Topology::named(&report_scale.topology, most).map_err(CommandError::usage)?;
    output::can_make_folder(out)?;
    let mut output = RunOutput::open(None, None)?;
    output.expect_file();
    output.record(&this_machine::here())?;
    published_scores::published_scores()
        .iter()
        .try_for_each(|score| output.record_as(score, Some(published_scores::COMMAND)))?;
    output.record_as(&published_scores::training_score(), Some(published_scores::TRAINING_COMMAND))?;
    let mut experiment = Experiment { report_scale, output, wrong: Vec::new(), activities: Vec::new() };
    let (done, interrupted) = experiment.all()?;
    let Experiment { mut output, wrong, activities, .. } = experiment;

    let mut stamp = output.stamp().clone();
    if interrupted.is_some() {
        stamp.command.push_str(&format!(" (interrupted after {done} of {} parts)", PARTS.len()));
    }
    let made = allfold_report::render(&output.records()?, &stamp)?;
    // The folder is made only now: a run that a second signal ends leaves none.
    output::folder(out)?;
    trace::activities(&out.join("trace.json"), &activities)?;
    files::write(out, &output.lines(), &made)?;
    output.say(format!(
        "\n{} in {:.0} s; the report: {}",
        match (wrong.is_empty(), interrupted) {
            (true, None) => "all checks passed",
            (true, Some(_)) => "all checks so far passed",
            (false, _) => "CHECKS FAILED",
        },
        start.elapsed().as_secs_f64(),
        out.join("report.html").display()
    ))?;
    output.say(format!(
        "beside it: records.jsonl ({} records), {} as .svg files, trace.json (for Perfetto or chrome://tracing)",
        output.records()?.len(),
        counted(made.plots.len(), "plot")
    ))?;
    output.close()?;
    if let Some(code) = interrupted {
        let what = format!("the page has {done} of {} parts; run it again for the others", PARTS.len());
        return Err(CommandError::Interrupted(what, u8::try_from(code).unwrap_or(1)));
    }
    wrong.into_iter().next().map_or(Ok(()), |first| Err(CommandError::check(first)))
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

/// Trains the CNN on threads and on virtual time. Returns a line for each rank count at which the two end with different bits, and
/// the activities of the 4 ranks of one run on virtual time.
fn train(report_scale: &ReportScale, output: &mut RunOutput) -> CommandResult<(Vec<String>, Vec<Activity>)> {
    let mut config = allfold_trainer::config::parse(CNN, "digits-cnn.toml").map_err(CommandError::run)?;
    config.training.max_steps = report_scale.steps;
    output.seed(Some(config.seed));
    let (mut differ, mut activities) = (Vec::new(), Vec::new());
    for &ranks in report_scale.training {
        let topology = Topology::named(&report_scale.topology, ranks).map_err(CommandError::run)?;
        let real = trained(&config, LaunchMode::Threads(ranks))?;
        let sim = trained(&config, LaunchMode::sim(topology, Device::default()))?;
        let steps =
            if report_scale.steps > 0 { format!(" --steps {}", report_scale.steps) } else { String::new() };
        let command =
            format!("allfold train --config experiments/configs/digits-cnn.toml --ranks {ranks}{steps}");
        let steps = real.records::<true>(&config, "threads", 0);
        steps.iter().try_for_each(|step| output.record_as(step, Some(&command)))?;
        let command = format!(
            "{command} --backend sim --topology {} --device {}",
            report_scale.topology,
            Device::default().name
        );
        let steps = sim.records::<false>(&config, "sim", 0);
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
                "on {} threads end with weights {} and sim with {}",
                counted(ranks as usize, "rank"),
                parity.threads_weights,
                parity.sim_weights
            ));
        }
        if ranks == 4 {
            let spans = sim.spans(sim.result.losses.len() / 2);
            let command = format!("{command} --trace trace.json");
            spans.iter().try_for_each(|span| output.record_as(span, Some(&command)))?;
            activities = sim.timeline;
        }
    }
    Ok((differ, activities))
}

/// Compares all ways to train the MLP; returns those whose weights differ between threads and virtual time.
fn compare(report_scale: &ReportScale, output: &mut RunOutput) -> CommandResult<Vec<String>> {
    let mut config = allfold_trainer::config::parse(MLP, "digits-mlp.toml").map_err(CommandError::run)?;
    let steps = report_scale.compared_steps;
    (config.training.max_steps, config.training.epochs) = (steps, steps);
    let (topology, ranks) = (report_scale.topology.clone(), 4);
    let command = format!(
        "allfold compare --config experiments/configs/digits-mlp.toml --ranks {ranks} --steps {steps} --topology {topology} --device {}",
        Device::default().name
    );
    let Compared { measured, simulated, wrong, .. } =
        Comparison::of_all(config, ranks, topology, Device::default()).run(Some(&command), output)?;
    let predicted = fastest(simulated.iter().map(|way| (&way.setup, way.step_us)));
    let measured = fastest(measured.iter().map(|way| (&way.setup, way.step_us)));
    output.say(format!(
        "strategies   {} to train: {}; on {ranks} ranks predicted fastest: {predicted}; measured fastest, on threads: {measured}",
        counted(simulated.len(), "way"),
        if wrong.is_empty() {
            "each ends with the same weights on threads and sim"
        } else {
            "weights DIFFER"
        }
    ))?;
    Ok(wrong)
}

/// The strategy of several ranks with the shortest step, in microseconds.
fn fastest<'a>(ways: impl Iterator<Item = (&'a Setup, f64)>) -> &'a str {
    let many = ways.filter(|(setup, _)| setup.ranks > 1);
    many.min_by(|a, b| a.1.total_cmp(&b.1)).map_or("none", |(setup, _)| &setup.strategy)
}

fn trained(config: &Config, place: LaunchMode) -> CommandResult<Trained> {
    let kind = if matches!(place, LaunchMode::Threads(_)) { "threads" } else { "sim" };
    let bar = progress::steps(1, &format!("training, {} on {kind}", place.ranks()));
    let trained = crate::training::run::run(config, &place, &bar);
    bar.finish_and_clear();
    trained
}

fn parity(config: &Config, ranks: u32, threads: &Trained, sim: &Trained) -> Parity {
    let bits = |t: &Trained| (t.losses_hash(), t.weights_hash());
    let ((threads_losses, threads_weights), (sim_losses, sim_weights)) = (bits(threads), bits(sim));
    Parity {
        model: config.model.name.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What `single` does on one rank is no answer to which way is the fastest on several.
    #[test]
    fn the_fastest_way_is_one_of_several_ranks() {
        let setup = |strategy: &str, ranks: u32| Setup {
            backend: "sim".into(),
            device: "a100_f32".into(),
            model: "mlp".into(),
            strategy: strategy.into(),
            ranks,
            mesh: Setup::data_parallel(ranks),
        };
        let ways = [setup("single", 1), setup("ddp", 4), setup("zero3", 4)];
        assert_eq!(fastest(ways.iter().zip([1.0, 20.0, 10.0])), "zero3");
        assert_eq!(fastest(ways[..1].iter().zip([1.0])), "none");
    }
}
