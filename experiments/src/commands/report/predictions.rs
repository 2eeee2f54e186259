//! What the standard experiment predicts: collectives over ranks and over sizes, training, and large networks.

use super::scale::{CNN, Cluster, NETWORKS, ReportScale, SWEPT_RANKS, WIDE, choice};
use crate::call::plan::Choice;
use crate::measure::machine_limits::cores;
use crate::predict::exchanges::Exchanges;
use crate::predict::machine::SimulatedMachine;
use crate::predict::nccl::{NcclMachine, NcclOptions};
use crate::scaling::curve::{self, Reach};
use crate::scaling::points::Scaling;
use crate::scaling::published::{DEVICE_VARIATION, JITTER_US};
use crate::scaling::workload::WorkloadScaling;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_cli::progress;
use allfold_collectives::Collective;
use allfold_prediction::Overheads;
use allfold_report::format;
use allfold_report::records::SimulatedScale;
use allfold_report::sizes::{RankCounts, Size};
use allfold_sim::Device;
use allfold_trainer::Config;
use allfold_trainer::workloads::{Precision, Workload};

/// The number of ranks for which the report shows where the time went.
const EXPLAINED: u32 = 64;

/// Times all-reduces of two sizes over rank counts.
///
/// # Errors
/// A call that cannot be timed.
pub fn collectives(report_scale: &ReportScale, output: &mut RunOutput) -> CommandResult {
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
                    "allfold simulate all_reduce --topology {topology} --ranks {ranks} --algo {name} -b {0} -e {0}",
                    Size(size)
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

/// Makes the scaling curves of the CNN, also measured up to the number of cores, and of a wide MLP, which is only predicted.
///
/// # Errors
/// A failed run.
pub fn training(report_scale: &ReportScale, output: &mut RunOutput) -> CommandResult {
    let counts = RankCounts(report_scale.scaling.to_vec());
    for (name, text) in [("digits-cnn", CNN), ("wide-mlp", WIDE)] {
        let mut config = allfold_trainer::config::parse(text, name).map_err(CommandError::run)?;
        config.training.max_steps = report_scale.scaling_steps;
        config.training.epochs = report_scale.scaling_steps;
        output.seed(Some(config.seed));
        let real = name == "digits-cnn";
        let reach = if real { Reach { measured: cores(), on_virtual_clock: 4 } } else { Reach::default() };
        let only = if real { "" } else { " --modeled-only" };
        let command = format!(
            "allfold scale --config experiments/configs/{name}.toml --ranks {counts} --topology {} --device {} --steps {}{only}",
            report_scale.topology,
            Device::default().name,
            report_scale.scaling_steps
        );
        let scaling = Scaling::new(config, report_scale.topology.clone(), Device::default());
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

/// The collectives of the sweep over sizes, each with two algorithms of this project.
const SWEPT: [(Collective, [&str; 2]); 3] = [
    (Collective::AllReduce, ["ring", "double_binary_tree"]),
    (Collective::AllGather, ["ring", "halving_doubling"]),
    (Collective::ReduceScatter, ["ring", "halving_doubling"]),
];

/// Times collectives over sizes on a real machine: by two algorithms of this project on a lane for each NIC, and by NCCL.
///
/// # Errors
/// A call that cannot be timed.
pub fn sweep(report_scale: &ReportScale, output: &mut RunOutput) -> CommandResult {
    let sizes = report_scale.sweep;
    let Cluster { topology: cluster, lanes, .. } = &report_scale.cluster;
    let ranks = SWEPT_RANKS;
    let calls = SWEPT.iter().map(|(_, names)| names.len() + 1).sum::<usize>() * sizes.len();
    let bar = progress::bar(calls as u64, "predicting over sizes");
    let machine = SimulatedMachine::named(cluster, ranks)?;
    let nccl = NcclMachine::new(cluster, ranks, NcclOptions::published()?)?;
    let command = |collective: Collective, name: &str, lanes: &str| {
        let ends = (sizes.first().copied().unwrap_or(0), sizes.last().copied().unwrap_or(0));
        let factor = sizes.get(1).map_or(2, |second| second / ends.0.max(1));
        format!(
            "allfold simulate {collective} --topology {cluster} --ranks {ranks} --algo {name}{lanes} -b {} -e {} -f {factor}",
            Size(ends.0),
            Size(ends.1)
        )
    };
    let mut said = Vec::new();
    for (collective, names) in SWEPT {
        for name in names {
            let choice = Choice { lanes: *lanes, ..choice(collective, Some(name), ranks)? };
            for &size in sizes {
                let (record, _) = machine.time(&choice, size)?;
                output.record_as(&record, Some(&command(collective, name, &format!(" --lanes {lanes}"))))?;
                bar.inc(1);
            }
        }
        let call = choice(collective, None, ranks)?;
        for &size in sizes {
            let record = nccl.time(&call, size)?.record;
            output.record_as(&record, Some(&command(collective, "nccl", "")))?;
            if Some(&size) == sizes.last() {
                said.push(format!("{collective} {:.1}", record.busbw_gbps));
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let Some(&largest) = sizes.last() else { return Ok(()) };
    output.say(format!(
        "predicted    NCCL on {ranks} ranks of {cluster}, {} each, busbw in GB/s: {}",
        format::bytes(largest),
        said.join(", ")
    ))
}

/// Predicts how large networks train on a real machine.
///
/// # Errors
/// A step that cannot be timed.
pub fn networks(report_scale: &ReportScale, output: &mut RunOutput) -> CommandResult {
    output.seed(None);
    let counts = RankCounts(report_scale.workload.to_vec());
    let Cluster { topology: cluster, gpu, .. } = &report_scale.cluster;
    for (name, batch) in NETWORKS {
        let scaling = WorkloadScaling {
            workload: Workload::named(name).map_err(CommandError::run)?,
            topology: cluster.clone(),
            gpu,
            precision: Precision::Half,
            batch,
            strong: false,
            accumulate: 1,
            sync_batch_norm: false,
            measured: None,
            // The terms with which published rates were predicted.
            terms: Overheads { device_variation: DEVICE_VARIATION, jitter_us: JITTER_US, ..Overheads::NONE },
            collectives: Exchanges::Nccl,
        };
        let bar = progress::bar(counts.0.len() as u64, name);
        let mut points: Vec<SimulatedScale> = Vec::new();
        for &ranks in &counts.0 {
            points.extend(scaling.point(ranks)?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        SimulatedScale::set_efficiency(&mut points);
        let command = format!(
            "allfold scale workload {name} --topology {cluster} --ranks {counts} --batch {batch} --amp --collectives nccl \
             --device-variation {DEVICE_VARIATION} --jitter {JITTER_US}"
        );
        points.iter().try_for_each(|point| output.record_as(point, Some(&command)))?;
        if let Some(last) = points.last() {
            output.say(format!(
                "predicted    {name} on {} {} of {cluster}: {} samples/s, {} efficient; a sample is {}",
                last.setup.ranks,
                gpu.name,
                format::grouped(last.samples_per_s),
                format::percent(last.efficiency),
                scaling.workload.sample()
            ))?;
        }
    }
    Ok(())
}
