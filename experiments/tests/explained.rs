#![allow(missing_docs, clippy::unwrap_used)]
//! Explains four small published tables: what a prediction must assume to agree with them, and the prediction for more GPUs.
//! `cargo test -p allfold-experiments --test explained -- --nocapture` prints the tables.
//!
//! ```text
//! resnet34      9, 5.5, 2 s per epoch on 1, 2, 8 V100, 16 images each     a second of each epoch that no GPU shortens
//! a100          215, 798 (several GPUs), 1,532 (with AMP) images/s        four GPUs, usual differences between them
//! data-parallel 8.5, 4.7, 2.9 h on 1, 2, 4 GPUs, 3.2 times faster on 8    one process: weights and gradients through GPU 0
//! segmentation  3 h on one RTX 3090, 40 min on 4                          the same volumes per GPU
//! ```
//!
//! The row of one GPU gives the speed of the computation. The other rows are compared with the prediction. The output names what is assumed, what is fitted and what stays open.

use allfold_cli::columns::columns;
use allfold_cli::error::{CommandError, CommandResult};
use allfold_cli::output::RunOutput;
use allfold_collectives::{Collective, Plan};
use allfold_experiments::predict::exchanges::Exchanges;
use allfold_experiments::scaling::published::{DEVICE_VARIATION, JITTER_US};
use allfold_experiments::scaling::workload::WorkloadScaling;
use allfold_prediction::{
    DdpOptions, Overheads, SimulatedExchange, StepPrediction, UniformCosts, WorkloadTraining,
    predict_data_parallel, predict_steps,
};
use allfold_sim::machines::GpuRates;
use allfold_sim::{Picos, Sharing, Topology};
use allfold_trainer::MemoryUse;
use allfold_trainer::buckets::Caps;
use allfold_trainer::workloads::{Precision, Workload};

/// The function that explains a table. Returns the table's rows.
type Explanation = fn(&mut RunOutput) -> CommandResult<Vec<Row>>;

/// The published tables by name, each with the function that explains it.
const TABLES: [(&str, Explanation); 4] = [
    ("resnet34", resnet34),
    ("a100", a100),
    ("data-parallel", data_parallel),
    ("segmentation", segmentation),
];

/// A row of a published table.
struct Row {
    /// The name of the row, such as a number of GPUs.
    what: String,
    /// The published value; `None` for a prediction beyond the table.
    published: Option<f64>,
    predicted: f64,
    /// Whether the prediction was fitted to this row.
    fitted: bool,
}

impl Row {
    fn new(what: impl ToString, published: Option<f64>, predicted: f64) -> Row {
        Row { what: what.to_string(), published, predicted, fitted: false }
    }

    /// The relative error of the prediction; `None` where the row was fitted, or nothing was published.
    fn off(&self) -> Option<f64> {
        self.published.filter(|_| !self.fitted).map(|published| self.predicted / published - 1.0)
    }
}

/// Prints rows, with the names of the first column and of the unit.
fn print(output: &mut RunOutput, (what, unit): (&str, &str), rows: &[Row]) -> CommandResult {
    let head =
        [what, &format!("published ({unit})"), &format!("predicted ({unit})"), "off by"].map(String::from);
    let line = |row: &Row| {
        let off = row.off().map(|off| format!("{:+.1} %", 100.0 * off));
        let number = |value: f64| if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") };
        vec![
            row.what.clone(),
            row.published.map_or("-".into(), number),
            number(row.predicted),
            if row.fitted { "fitted".into() } else { off.unwrap_or("-".into()) },
        ]
    };
    output.say(columns(&[vec![head.to_vec()], rows.iter().map(line).collect()].concat()))
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
        gpu: GpuRates::named(device).map_err(CommandError::usage)?,
        precision,
        batch: 16,
        strong: false,
        accumulate: 1,
        sync_batch_norm: false,
        measured: None,
        terms: Overheads::NONE,
        collectives: Exchanges::Nccl,
    })
}

/// ResNet-34, 16 images per GPU, V100: seconds per epoch on 1, 2 and 8 GPUs.
fn resnet34(output: &mut RunOutput) -> CommandResult<Vec<Row>> {
    /// Seconds of an epoch that no GPU shortens.
    const FIXED: f64 = 1.0;
    let base = scaling("resnet34", "dgx1-v100", "V100 SXM", Precision::F32)?;
    let one = base.predict(1, 16)?.time.total().as_secs();
    // The share of a step that the links add.
    let wires = |ranks: u32| -> CommandResult<f64> {
        Ok(base.predict(ranks, 16)?.time.total().as_secs() / one - 1.0)
    };
    let [two, eight] = [wires(2)?, wires(8)?];
    // T(n) = fixed + (9 - fixed) / n x (1 + wires(n))
    let epoch = |ranks: u32, wires: f64, fixed: f64| fixed + (9.0 - fixed) / f64::from(ranks) * (1.0 + wires);
    let seconds = |ranks: u32| -> CommandResult<f64> { Ok(epoch(ranks, wires(ranks)?, FIXED)) };
    output.say("ResNet-34, batch 16 per GPU, V100: 9, 5.5 and 2 s per epoch on 1, 2 and 8 GPUs, by `ddp`")?;
    output.say(format!(
        "  assumed: a DGX-1 (NVLink), images of 224 x 224 in f32; a step of one GPU is then {:.1} ms, an epoch {:.0} images. The\n  \
         links add {:.1} % to a step on 2 GPUs and {:.1} % on 8, so they do not explain it",
        1e3 * one,
        (9.0 - FIXED) / one * 16.0,
        100.0 * two,
        100.0 * eight
    ))?;
    let is_near = |seconds: f64, published: f64| (seconds / published - 1.0).abs() <= 0.15;
    let tenths = (0..30).map(|tenths| f64::from(tenths) / 10.0);
    let fits =
        tenths.filter(|fixed| is_near(epoch(2, two, *fixed), 5.5) && is_near(epoch(8, eight, *fixed), 2.0));
    let fits: Vec<f64> = fits.collect();
    output.say(format!(
        "  assumed besides: {FIXED} s of an epoch is the same on any number of GPUs (workers that start, a last batch, an evaluation);\n  \
         with {:.1} to {:.1} s both other rows are within 15 %",
        fits.first().copied().unwrap_or_default(),
        fits.last().copied().unwrap_or_default()
    ))?;
    let rows = vec![
        Row { fitted: true, ..Row::new(1, Some(9.0), 9.0) },
        Row::new(2, Some(5.5), epoch(2, two, FIXED)),
        Row::new(8, Some(2.0), epoch(8, eight, FIXED)),
        Row::new(16, None, seconds(16)?),
        Row::new(64, None, seconds(64)?),
    ];
    print(output, ("GPUs", "s"), &rows)?;
    output.say("  open: the data set, and whether hosts were late; 1 s was not measured\n")?;
    Ok(rows)
}

/// A100: 215 images/s in FP32 on one GPU, 798 on several, 1,532 with AMP.
fn a100(output: &mut RunOutput) -> CommandResult<Vec<Row>> {
    const ONE: f64 = 215.0;
    const BATCH: usize = 64;
    let full = scaling("resnet50", "dgx-a100", "A100 SXM", Precision::Tf32)?;
    let half = scaling("resnet50", "dgx-a100", "A100 SXM", Precision::Half)?;
    let alone = full.predict(1, BATCH)?.throughput();
    let gain = half.predict(1, BATCH)?.throughput() / alone;
    // Every kernel is slowed so that one GPU does what was published.
    let terms = Overheads { device_variation: DEVICE_VARIATION, jitter_us: JITTER_US, ..Overheads::NONE };
    let full = WorkloadScaling { measured: Some(ONE), terms, ..full };
    let half = WorkloadScaling { measured: Some(ONE * gain), terms, ..half };
    let rate = |scaling: &WorkloadScaling, ranks: u32| -> CommandResult<f64> {
        Ok(scaling.predict(ranks, BATCH)?.throughput())
    };
    output.say("A100: 215 images/s in FP32 on one GPU, 798 on several, 1,532 with AMP, by `ddp`")?;
    output.say(format!(
        "  assumed: 4 GPUs of a DGX A100, since 798 / 215 = 3.71; {BATCH} images a GPU and step; FP32 is PyTorch's default, whose\n  \
         convolutions are in TF32; a network that gains by AMP as ResNet-50 does, {gain:.2} times (one GPU would do {alone:.0}\n  \
         images/s of ResNet-50); GPUs differ by {:.0} % and hosts are late by {:.0} ms (standard deviations), as in the tables of\n  \
         `scale validate`\n  \
         fitted: the row of 1 GPU gives the speed of the network, which is not named",
        100.0 * DEVICE_VARIATION,
        JITTER_US / 1e3
    ))?;
    let rows = vec![
        Row { fitted: true, ..Row::new("1, FP32", Some(ONE), rate(&full, 1)?) },
        Row::new("4, FP32", Some(798.0), rate(&full, 4)?),
        Row::new("4, AMP", Some(1532.0), rate(&half, 4)?),
        Row::new("16, AMP", None, rate(&half, 16)?),
        Row::new("64, AMP", None, rate(&half, 64)?),
    ];
    print(output, ("GPUs", "images/s"), &rows)?;
    output.say("  open: the network, and whether the node's CPUs prepare more than 1,532 images/s\n")?;
    Ok(rows)
}

/// ResNet-50 on ImageNet by one process that scatters and gathers: 8.5, 4.7, 2.9 h and 10.2, 5.8, 3.2 GB on 1, 2, 4 GPUs, 3.2 times
/// faster on 8.
fn data_parallel(output: &mut RunOutput) -> CommandResult<Vec<Row>> {
    const HOURS: [(u32, f64); 4] = [(1, 8.5), (2, 4.7), (4, 2.9), (8, 8.5 / 3.2)];
    const GIGABYTES: [(u32, f64); 3] = [(1, 10.2), (2, 5.8), (4, 3.2)];
    /// Images of a step, on however many GPUs; the numbers of an image and of its classes; the GB of CUDA's context.
    const BATCH: u32 = 96;
    const NUMBERS: (usize, usize) = (3 * 224 * 224, 1000);
    const CONTEXT: f64 = 0.5;
    let base = scaling("resnet50", "pcie8", "V100 SXM", Precision::F32)?;
    let plan = Plan::default().algorithm(Collective::Broadcast, "star").map_err(CommandError::run)?;
    let plan = plan.algorithm(Collective::Reduce, "chain").map_err(CommandError::run)?;
    let step = |ranks: u32| -> CommandResult<StepPrediction> {
        let topology = Topology::named("pcie8", ranks).map_err(CommandError::run)?;
        let mut exchange = SimulatedExchange::new(&topology, topology.costs(), Sharing::default(), &plan);
        let each = (BATCH / ranks) as usize;
        let job = WorkloadTraining::new(&base.workload, base.gpu, Precision::F32, each);
        predict_data_parallel(&job, NUMBERS, ranks, &mut exchange).map_err(CommandError::run)
    };
    let seconds = |step: &StepPrediction| step.time.total().as_secs();
    // What GPU 0 holds at its peak on the clock, in GB.
    let peak = |step: &StepPrediction| step.peaks.first().copied().unwrap_or_default();
    let held = |step: &StepPrediction| CONTEXT + peak(step).total() as f64 / 1e9;
    let steps = HOURS.iter().map(|(ranks, _)| step(*ranks)).collect::<CommandResult<Vec<_>>>()?;
    let one = &steps[0];
    let MemoryUse { params, gradients, optimiser, .. } = peak(one);
    let model = (params + gradients + optimiser) as f64 / 1e9;
    let image = (held(one) - model - CONTEXT) / f64::from(BATCH);
    output.say(
        "ResNet-50 on ImageNet, one process: 8.5, 4.7, 2.9 h and 10.2, 5.8, 3.2 GB on 1, 2, 4 GPUs, 3.2 times faster on 8, by\n\
         `data_parallel`",
    )?;
    output.say(format!(
        "  assumed: V100 on PCI Express, images of 224 x 224 in f32; CUDA's context of {CONTEXT} GB; in each step images, weights\n  \
         ({:.0} MB), outputs and gradients go through GPU 0: weights to one GPU after another, gradients along a chain of GPUs\n  \
         fitted: the row of 1 GPU gives the number of steps, and the images of a step, on however many GPUs: {model:.2} GB of weights,\n  \
         gradients and velocity and {:.0} MB for each of {:.0} images would be 10.2 GB; taken are {BATCH}, {:.0} ms on one GPU",
        params as f64 / 1e6,
        1e3 * image,
        (10.2 - model - CONTEXT) / image,
        1e3 * seconds(one)
    ))?;
    let row = |&(ranks, published): &(u32, f64), predicted: f64| Row {
        fitted: ranks == 1,
        ..Row::new(ranks, Some(published), predicted)
    };
    let hours = HOURS.iter().zip(&steps).map(|(of, step)| row(of, 8.5 * seconds(step) / seconds(one)));
    let mut rows: Vec<Row> = hours.collect();
    print(output, ("GPUs", "h"), &rows)?;
    let held: Vec<Row> = GIGABYTES.iter().zip(&steps).map(|(of, step)| row(of, held(step))).collect();
    print(output, ("GPUs", "GB on GPU 0"), &held)?;
    output.say(
        "  open: how the library moved weights and gradients; with chains for both, 8 GPUs would take a third less\n",
    )?;
    rows.extend(held);
    Ok(rows)
}

/// 3-D segmentation of volumes of 512 x 512 x 128: 3 h on one RTX 3090 with a batch of 2, 40 min on four with a batch of 8.
fn segmentation(output: &mut RunOutput) -> CommandResult<Vec<Row>> {
    /// The parameters of the 3-D U-Net of O. Cicek et al., MICCAI 2016, and the time of a step of one GPU.
    const PARAMETERS: usize = 19_069_955;
    const STEP: Picos = Picos(2_000_000_000_000);
    let minutes = |ranks: u32| -> CommandResult<f64> {
        let topology = Topology::named("pcie8", ranks).map_err(CommandError::run)?;
        let plan = Plan::default();
        let mut exchange = SimulatedExchange::new(&topology, topology.costs(), Sharing::default(), &plan);
        let caps = Some(Caps { first: 1 << 20, rest: 25 << 20 });
        let options = DdpOptions { batch: 2, accumulate: 1, caps, views: false, scaler: false };
        let costs = UniformCosts::new(PARAMETERS, STEP);
        let step = predict_steps(&costs, options, ranks, &mut exchange).map_err(CommandError::run)?;
        Ok(180.0 / f64::from(ranks) * step.time.total().as_secs() / STEP.as_secs())
    };
    output.say("3-D segmentation, volumes of 512 x 512 x 128: 3 h on one RTX 3090 with a batch of 2, 40 min on 4 with a batch of 8, by `ddp`")?;
    output.say(
        "  assumed: a 3-D U-Net of 19 million parameters, 2 volumes and 2 s a GPU and step, GPUs on PCI Express\n  \
         fitted: the row of 1 GPU gives the number of steps",
    )?;
    let rows = vec![
        Row { fitted: true, ..Row::new(1, Some(180.0), minutes(1)?) },
        Row::new(4, Some(40.0), minutes(4)?),
        Row::new(8, None, minutes(8)?),
    ];
    print(output, ("GPUs", "min"), &rows)?;
    output.say("  open: why four are 4.5 times as fast as one; four processes also read and cut four volumes at a time\n")?;
    Ok(rows)
}

#[test]
fn rows_that_were_not_fitted_are_within_fifteen_percent() {
    for (name, explain) in TABLES {
        let rows = explain(&mut RunOutput::open(None, None).unwrap()).unwrap();
        let far: Vec<f64> = rows.iter().filter_map(Row::off).collect();
        // The speed of one GPU; of the two tables of DataParallel, how many images fit into one GPU, too.
        let fitted = if name == "data-parallel" { 2 } else { 1 };
        assert_eq!(rows.iter().filter(|row| row.fitted).count(), fitted, "{name}");
        assert!(!far.is_empty(), "{name}");
        assert!(far.iter().all(|off| off.abs() <= 0.15), "{name}: {far:.3?}");
    }
}
