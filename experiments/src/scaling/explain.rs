//! Explains three small published tables: the assumptions under which a prediction agrees with them, and the prediction for 16
//! and 64 GPUs.
//!
//! ```text
//! resnet34   9, 5.5, 2 s per epoch on 1, 2, 8 V100, 16 images each     an epoch's fixed part, and hosts that are late
//! a100       215, 798 (several GPUs), 1,532 (with AMP) images/s        four GPUs, and a node that prepares no more images
//! parallel   8.5, 4.7, 2.9 h on 1, 2, 4 GPUs, 3.2 times faster on 8    one process that launches for all, weights sent each step
//! ```
//!
//! Each explanation has as many unknowns as there are rows that determine them; other rows are compared with the prediction. The
//! output names what is solved for and what stays open.

use crate::cli::columns::columns;
use crate::cli::error::{CommandError, CommandResult};
use crate::cli::output::RunOutput;
use crate::scaling::workload::{Collectives, WorkloadScaling};
use allfold_collectives::registry::{self, Shape};
use allfold_collectives::time::{Engine, Job, simulate};
use allfold_collectives::{Collective, Geometry};
use allfold_prediction::{Overheads, expected_max};
use allfold_sim::Topology;
use allfold_trainer::workloads::{Accelerator, Precision, Workload};

/// The function that explains a table.
type Explanation = fn(&mut RunOutput) -> CommandResult;

/// The published tables by name, each with the function that explains it.
pub const TABLES: [(&str, Explanation); 3] =
    [("resnet34", resnet34), ("a100", a100), ("data-parallel", data_parallel)];

/// Explains one table, or all of them.
///
/// # Errors
/// A name that no table has.
pub fn run(name: &str, output: &mut RunOutput) -> CommandResult {
    let names: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
    if name != "all" && !names.contains(&name) {
        return Err(CommandError::usage(allfold_sim::suggest::unknown(
            "published table",
            name,
            &[&names[..], &["all"]].concat(),
        )));
    }
    TABLES
        .iter()
        .filter(|(known, _)| name == "all" || name == *known)
        .try_for_each(|(_, explain)| explain(output))
}

fn scaling(
    workload: &str,
    topology: &str,
    device: &str,
    precision: Precision,
) -> CommandResult<WorkloadScaling> {
    Ok(WorkloadScaling {
        workload: Workload::named(workload).map_err(CommandError::usage)?,
        topology: topology.into(),
        accelerator: Accelerator::named(device).map_err(CommandError::usage)?,
        precision,
        batch: 16,
        strong: false,
        accumulate: 1,
        sync_batch_norm: false,
        measured: None,
        terms: Overheads::NONE,
        collectives: Collectives::Nccl,
    })
}

fn rows(names: &[&str], lines: Vec<Vec<String>>) -> String {
    let head = names.iter().map(|name| name.to_string()).collect();
    columns(&[vec![head], lines].concat())
}

/// ResNet-34, 16 images per GPU, V100: seconds per epoch on 1, 2 and 8 GPUs.
fn resnet34(output: &mut RunOutput) -> CommandResult {
    const PUBLISHED: [(u32, f64); 3] = [(1, 9.0), (2, 5.5), (8, 2.0)];
    let base = scaling("resnet34", "dgx1-v100", "V100 SXM", Precision::F32)?;
    let one = base.predict(1, 16)?.time.total().as_secs();
    // The share of a step that the links add.
    let wires = |ranks: u32| -> CommandResult<f64> {
        Ok(base.predict(ranks, 16)?.time.total().as_secs() / one - 1.0)
    };
    // T(n) = fixed + (9 - fixed) / n x (1 + wires(n) + late x E[max of n]): two unknowns, determined by the rows of 2 and 8 GPUs.
    let late = |fixed: f64, ranks: u32, seconds: f64| -> CommandResult<f64> {
        let stretch = f64::from(ranks) * (seconds - fixed) / (9.0 - fixed);
        Ok((stretch - 1.0 - wires(ranks)?) / expected_max(ranks))
    };
    let (mut low, mut high) = (0.0, 1.9);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        // A larger fixed part leaves less to explain by lateness, most of all on 8 GPUs, so the difference falls as `middle`
        // grows.
        let apart = late(middle, 8, 2.0)? - late(middle, 2, 5.5)?;
        if apart > 0.0 { low = middle } else { high = middle }
    }
    let fixed = low;
    let late = late(fixed, 8, 2.0)?;
    let images = (9.0 - fixed) / one * 16.0;
    output.say("ResNet-34, batch 16 per GPU, V100: 9, 5.5 and 2 s per epoch on 1, 2 and 8 GPUs")?;
    output.say(format!(
        "  assumed: a DGX-1 (NVLink), images of 224 x 224 in f32; a step of one GPU is then {:.1} ms, an epoch {images:.0} images",
        1e3 * one
    ))?;
    output.say(format!(
        "  the wires add {:.1} % to a step on 2 GPUs and {:.1} % on 8: they do not explain it",
        100.0 * wires(2)?,
        100.0 * wires(8)?
    ))?;
    output.say(format!(
        "  solved for: {fixed:.2} s of each epoch that no GPU shortens (workers start, a last batch, evaluation), and hosts that\n  are late by {:.0} % of a step (standard deviation; {:.1} ms): all wait for the latest of n",
        100.0 * late,
        1e3 * late * one
    ))?;
    let mut lines = Vec::new();
    for ranks in [1u32, 2, 8, 16, 64] {
        let seconds =
            fixed + (9.0 - fixed) / f64::from(ranks) * (1.0 + wires(ranks)? + late * expected_max(ranks));
        let published =
            PUBLISHED.iter().find(|row| row.0 == ranks).map_or("-".into(), |row| format!("{}", row.1));
        lines.push(vec![
            ranks.to_string(),
            published,
            format!("{seconds:.2}"),
            format!("{:.1}", 9.0 / seconds),
        ]);
    }
    output.say(rows(&["GPUs", "published (s)", "predicted (s)", "speed-up"], lines))?;
    output.say("  open: the dataset, and whether lateness is the loader's: batches of 16 leave a host a few milliseconds each\n")
}

/// A100: 215 images/s in FP32 on one GPU, 798 on several, 1,532 with AMP.
fn a100(output: &mut RunOutput) -> CommandResult {
    let full = scaling("resnet50", "dgx-a100", "A100 SXM", Precision::F32)?;
    let half = WorkloadScaling {
        precision: Precision::Half,
        ..scaling("resnet50", "dgx-a100", "A100 SXM", Precision::Half)?
    };
    let batch = 64;
    let alone = full.predict(1, batch)?.throughput();
    let gain = half.predict(1, batch)?.throughput() / alone;
    output.say("A100: 215 images/s in FP32 on one GPU, 798 on several, 1,532 with AMP")?;
    output.say(format!(
        "  on several: 798 / 215 = 3.71, so 4 GPUs at {:.1} %; the model is not named: ResNet-50 would do {alone:.0} images/s in f32",
        100.0 * 798.0 / 215.0 / 4.0
    ))?;
    // The model's step is scaled to the measured single GPU. Lateness explains the part of the row of 4 GPUs that the links do
    // not.
    let measured = WorkloadScaling { measured: Some(215.0), ..full };
    let wires = |ranks: u32| -> CommandResult<f64> {
        Ok(215.0 * f64::from(ranks) / measured.predict(ranks, batch)?.throughput() - 1.0)
    };
    let late = (4.0 * 215.0 / 798.0 - 1.0 - wires(4)?) / expected_max(4);
    output.say(format!(
        "  solved for: hosts late by {:.1} % of a step (the wires add {:.1} %)",
        100.0 * late,
        100.0 * wires(4)?
    ))?;
    output.say(format!(
        "  AMP: kernels alone would gain {gain:.1} times, the table shows {:.2}; assumed: the CPUs of the node prepare 1,532 images/s\n  and no more, which binds from 4 GPUs on",
        1532.0 / 798.0
    ))?;
    let mut lines = Vec::new();
    for ranks in [1u32, 4, 8, 16, 64] {
        let waits = 1.0 + wires(ranks)? + late * expected_max(ranks);
        let plain = 215.0 * f64::from(ranks) / waits;
        let nodes = f64::from(ranks.div_ceil(8));
        let (limit, kernels) = (1532.0 * nodes, plain * gain);
        let published = match ranks {
            1 => "215",
            4 => "798 / 1532",
            _ => "-",
        };
        lines.push(vec![
            ranks.to_string(),
            published.into(),
            format!("{:.0}", plain.min(limit)),
            format!("{:.0}", kernels.min(limit)),
            if kernels > limit { "preparing images".into() } else { "GPUs".into() },
        ]);
    }
    output.say(rows(&["GPUs", "published (images/s)", "FP32", "AMP", "AMP is bound by"], lines))?;
    output.say(
        "  open: the model; whether FP32 on 8 GPUs is bound by the images as well, as 1,532 a node says\n",
    )
}

/// ResNet-50 on ImageNet by one process that scatters and gathers: 8.5, 4.7, 2.9 h on 1, 2, 4 GPUs, 3.2 times faster on 8.
fn data_parallel(output: &mut RunOutput) -> CommandResult {
    const PUBLISHED: [(u32, f64); 4] = [(1, 8.5), (2, 4.7), (4, 2.9), (8, 8.5 / 3.2)];
    let base = scaling("resnet50", "pcie8", "V100 SXM", Precision::F32)?;
    let batch = 256usize;
    let workload = &base.workload;
    let bytes = workload.parameters() as u64 * 4;
    // In each step weights go out and gradients come back through GPU 0, over PCI Express.
    let through_root = |ranks: u32| -> CommandResult<f64> {
        let topology = Topology::named("pcie8", ranks).map_err(CommandError::run)?;
        let star = registry::find(Collective::AllReduce, "star").map_err(CommandError::run)?;
        let schedule = star.build(Shape::new(ranks).map_err(CommandError::run)?);
        let geometry = Geometry::whole(&*schedule, bytes / 4);
        let job = Job::new(&*schedule, &geometry, 4, &topology);
        Ok(simulate(&job, Engine::Auto).map_err(CommandError::run)?.time.as_secs())
    };
    // Shares of the step of one GPU: parallel / n + serial + moved(n) + launch (n - 1). The rows of 1, 2 and 8 GPUs determine the
    // three unknowns.
    let one = base.predict(1, batch)?.time.total().as_secs();
    let moved =
        |ranks: u32| -> CommandResult<f64> { Ok(if ranks < 2 { 0.0 } else { through_root(ranks)? / one }) };
    let (two, eight) = (4.7 / 8.5 - 1.0 - moved(2)?, 1.0 / 3.2 - 1.0 - moved(8)?);
    let parallel = (eight - 7.0 * two) / (3.5 - 0.875);
    let (serial, launch) = (1.0 - parallel, two + parallel / 2.0);
    output.say("ResNet-50 on ImageNet, one process that scatters and gathers: 8.5, 4.7, 2.9 h on 1, 2, 4 GPUs, 3.2 times faster on 8")?;
    output.say(format!(
        "  assumed: 256 images a step whatever the GPUs ({:.0} ms on one V100 in f32), GPUs on PCI Express; weights go out and\n  gradients come back through GPU 0 each step: {:.0} MB each way, {:.0}, {:.0} and {:.0} ms on 2, 4 and 8 GPUs",
        1e3 * one,
        bytes as f64 / 1e6,
        1e3 * through_root(2)?,
        1e3 * through_root(4)?,
        1e3 * through_root(8)?
    ))?;
    output.say(format!(
        "  solved for, from the rows of 1, 2 and 8: {:.1} % of a step is serial (scatter, loss on GPU 0), and each further GPU\n  that the one process launches kernels for takes {:.1} % more; the row of 4 checks this",
        100.0 * serial,
        100.0 * launch
    ))?;
    let mut lines = Vec::new();
    for ranks in [1u32, 2, 4, 8, 16, 64] {
        let across = if ranks > 8 { moved(8)? * f64::from(ranks - 1) / 7.0 } else { moved(ranks)? };
        let share = parallel / f64::from(ranks) + serial + across + launch * f64::from(ranks - 1);
        let published =
            PUBLISHED.iter().find(|row| row.0 == ranks).map_or("-".into(), |row| format!("{:.2}", row.1));
        // The time of separate processes with overlapped exchange for the same images, 256 / n each.
        let each = (batch / ranks as usize).max(1);
        let ddp = WorkloadScaling {
            topology: "dgx1-v100".into(),
            ..scaling("resnet50", "dgx1-v100", "V100 SXM", Precision::F32)?
        };
        let ddp = 8.5 * ddp.predict(ranks, each)?.time.total().as_secs() / one;
        lines.push(vec![
            ranks.to_string(),
            published,
            format!("{:.2}", 8.5 * share),
            format!("{:.1}", 1.0 / share),
            format!("{ddp:.2}"),
        ]);
    }
    output
        .say(rows(&["GPUs", "published (h)", "predicted (h)", "speed-up", "a process per GPU (h)"], lines))?;
    output.say("  16 and 64 are no machine for one process: the column says what it would cost if it were; the last column is DDP\n  over nodes of 8. Open: the batch; whether a further GPU costs launches or the way between two sockets\n")
}
