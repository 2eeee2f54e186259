//! Published training throughput beside what is predicted from the row of one GPU.
//!
//! ```text
//! one GPU's row --> a step's time --> DDP timeline on the machine --> the rows of 2, 4, 8, .. GPUs
//! ```
//!
//! Nothing is fitted to the tables: the terms' sizes are from elsewhere ([`TERMS`]), and every row of more than one GPU counts.

use crate::cli::columns::columns;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::session::{self, Session};
use crate::scaling::tables as scaling_tables;
use crate::scaling::tables::{Curve, ScalingTable};
use crate::scaling::workload;
use allfold_nccl_model::Overrides;
use allfold_report::plots::{Axis, Curves, Ideal, Origin, Point, Series};
use allfold_report::records::ScalingRow;
use allfold_sim::Picos;
use allfold_sim::machines::presets::Preset;
use allfold_trainer::buckets::Caps;
use allfold_trainer::modeled::{Even, Job, NcclModel, Rules, Terms, predict_steps, predict_workload};
use allfold_trainer::workloads::{Accelerator, Precision, Workload};
use std::path::{Path, PathBuf};

/// A term of the prediction: its name, and what it is and where its size is from. Multiprocessors that an exchange's channels
/// take were tried and left out: they made no table better.
pub const TERMS: [(&str, &str); 3] = [
    ("communication", "buckets that the backward pass does not hide, by NCCL's own model of the machine"),
    (
        "spread",
        "GPUs of one kind differ in speed by 2 % (standard deviation) and the slowest is waited for; P. Sinha et al., \
         \"Not all GPUs are created equal\", SC 2022, found 8 % between the ends for ResNet-50",
    ),
    (
        "jitter",
        "1 ms (standard deviation) by which a host is late with a step; the latest is waited for; assumed",
    ),
];

const SPREAD: f64 = 0.02;
const JITTER_US: f64 = 1000.0;

/// Parameters of the networks in published tables that have no layer table here: words of the model's path, millions.
/// From the papers and the repositories' model descriptions; those of detectors and U-Nets are near values, which is enough:
/// an exchange takes about a millisecond of steps of a hundred.
const PARAMETERS: [(&str, f64); 24] = [
    ("se-resnext101", 48.96),
    ("resnext101", 44.18),
    ("efficientdet", 3.9),
    ("maskrcnn", 44.4),
    ("unet_3d", 19.1),
    ("unet_industrial", 1.9),
    ("unet_medical", 31.0),
    ("nnunet", 31.2),
    ("vnet", 45.6),
    ("ssd", 22.9),
    ("transformer-xl", 191.0),
    ("transformer", 210.0),
    ("gnmt", 160.0),
    ("bart", 406.0),
    ("electra", 110.0),
    ("fastpitch", 45.0),
    ("fastspeech", 30.0),
    ("wav2vec2", 95.0),
    ("quartznet", 19.0),
    ("hifigan", 14.0),
    ("se3transformer", 1.0),
    ("moflow", 9.0),
    ("tft", 1.0),
    ("languagemodeling/bert", 335.0),
];

/// Which terms are left out.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// By name; see [`TERMS`].
    pub without: Vec<String>,
    /// Print every row.
    pub rows: bool,
    /// Draw predicted beside published into this file.
    pub plot: Option<PathBuf>,
}

/// Whether a table is of classification, detection or segmentation of images.
fn is_vision(model: &str) -> bool {
    ["classification", "detection", "segmentation"].iter().any(|kind| model.to_lowercase().contains(kind))
}

/// Whether a table is of ResNet-50, which has a layer table here.
fn is_resnet50(model: &str) -> bool {
    let model = model.to_lowercase();
    model.contains("resnet50") || model.contains("rn50")
}

/// One predicted row.
struct Predicted {
    ranks: u32,
    published: f64,
    predicted: f64,
}

impl Predicted {
    fn error(&self) -> f64 {
        (self.predicted / self.published - 1.0).abs()
    }
}

/// Why a table or a curve is left out.
type Left = String;

/// Predicts a curve's rows from its first; with what was assumed.
fn predict(
    table: &ScalingTable,
    curve: &Curve,
    without: &[String],
) -> Result<(Vec<Predicted>, Vec<String>), Left> {
    let machine =
        table.machine.as_deref().ok_or_else(|| format!("no machine is known in `{}`", table.hardware))?;
    let preset = Preset::named(machine).map_err(|error| error.to_string())?;
    if let Some(odd) = &curve.odd {
        return Err(odd.clone());
    }
    let Some(&(1, one)) = curve.points.first() else { return Err("it has no row of one GPU".into()) };
    if curve.points.len() < 2 {
        return Err("it has one row".into());
    }
    if let Some((gpus, rate)) = curve.points.iter().find(|(gpus, rate)| *rate > 1.3 * one * f64::from(*gpus))
    {
        return Err(format!(
            "{gpus} GPUs do {:.1} times what one does: the row of one GPU is not comparable",
            rate / one
        ));
    }
    let mut assumed = Vec::new();
    let path = table.model.to_lowercase();
    let workload = is_resnet50(&table.model).then_some("resnet50");
    let accelerator = Accelerator::named(&preset.gpu).map_err(|error| error.to_string())?;
    let batch = curve.batch.unwrap_or_else(|| {
        let batch = if curve.precision == Precision::Half || accelerator.memory > 1500.0 { 256 } else { 128 };
        assumed.push(format!("{batch} samples a GPU and step"));
        batch
    });
    let has = |term: &str| !without.iter().any(|name| name == term);
    let terms = Terms {
        spread: if has("spread") { SPREAD } else { 0.0 },
        jitter_us: if has("jitter") { JITTER_US } else { 0.0 },
        ..Terms::NONE
    };
    let parameters = PARAMETERS.iter().find(|(words, _)| path.contains(words)).map(|(_, millions)| *millions);
    if workload.is_none() && parameters.is_none() {
        return Err(format!("how many parameters {} has is not known", table.model));
    }
    let mut rows = Vec::new();
    for &(ranks, published) in curve.points.iter().filter(|(gpus, _)| *gpus > 1) {
        let mut nccl = NcclModel::new(
            workload::platform(&preset, ranks).map_err(|failure| failure.to_string())?,
            Overrides::default(),
        );
        let caps = Caps { first: 1 << 20, rest: 25 << 20 };
        let alone = f64::from(batch) / one;
        // With accumulation a step is as many batches, and exchanges once.
        let batches = if workload.is_some() { 1.0 } else { f64::from(curve.accumulation) };
        let prediction = match workload {
            Some(name) => {
                let workload = Workload::named(name).map_err(|error| error.to_string())?;
                let base = Job::new(&workload, accelerator, curve.precision, batch as usize);
                let job = Job { measured: Some(one), terms, ..base };
                predict_workload(&job, ranks, &mut nccl)
            }
            None => {
                let all = alone * batches;
                let steps = Even::new((parameters.unwrap_or(1.0) * 1e6) as usize, Picos((all * 1e12) as u64));
                let batch = batch as usize * curve.accumulation as usize;
                let rules =
                    Rules { batch, micro_batch: batch, caps: Some(caps), views: false, scaler: false };
                predict_steps(&steps, rules, ranks, &mut nccl).map(|mut prediction| {
                    terms.apply(&mut prediction);
                    prediction
                })
            }
        };
        let mut prediction = prediction.map_err(|error| error.to_string())?;
        if !has("communication") {
            let steps = Even::new(1, Picos((alone * batches * 1e12) as u64));
            let rules = Rules {
                batch: batch as usize,
                micro_batch: batch as usize,
                caps: None,
                views: false,
                scaler: false,
            };
            prediction = predict_steps(&steps, rules, ranks, &mut nccl).map_err(|error| error.to_string())?;
            terms.apply(&mut prediction);
        }
        // Samples of the table may be tokens: scale what the table says of one GPU.
        let gain = f64::from(ranks) * alone * batches / prediction.time.total().as_secs();
        rows.push(Predicted { ranks, published, predicted: one * gain });
    }
    Ok((rows, assumed))
}

/// Predicts every table, prints the score and writes the records.
///
/// # Errors
/// A file that is no table; a term that does not exist.
pub fn run(files: &[PathBuf], options: &Options, session: &mut Session) -> Outcome {
    let names: Vec<&str> = TERMS.iter().map(|(name, _)| *name).collect();
    for term in &options.without {
        if !names.contains(&term.as_str()) {
            return Err(Failure::usage(allfold_sim::suggest::unknown("term", term, &names)));
        }
    }
    let tables: Vec<ScalingTable> = files
        .iter()
        .map(|file| scaling_tables::read(file).map_err(Failure::usage))
        .collect::<Outcome<_>>()?;
    options.plot.iter().try_for_each(|path| session.will_write(path))?;
    let mut lines =
        vec![["table", "curve", "GPUs", "published", "predicted", "error (%)"].map(String::from).to_vec()];
    let mut all = Vec::new();
    let mut left = Vec::new();
    for table in &tables {
        let reason = match (&table.suspect, table.evaluation) {
            (Some(why), _) => Some(format!("suspect: {why}")),
            (None, true) => Some("inference exchanges nothing".into()),
            (None, false) => None,
        };
        if let Some(reason) = reason {
            left.push((table.name.clone(), reason));
            continue;
        }
        for curve in &table.curves {
            let (rows, assumed) = match predict(table, curve, &options.without) {
                Ok(found) => found,
                Err(why) => {
                    left.push((format!("{}, {}", table.name, curve.name), why));
                    continue;
                }
            };
            for row in rows {
                let vision = is_vision(&table.model);
                lines.push(vec![
                    table.name.clone(),
                    curve.name.clone(),
                    row.ranks.to_string(),
                    format!("{:.0}", row.published),
                    format!("{:.0}", row.predicted),
                    format!("{:.1}", 100.0 * row.error()),
                ]);
                all.push(Scored {
                    vision,
                    resnet50: is_resnet50(&table.model),
                    ranks: row.ranks,
                    error: row.error(),
                });
                session.record(&ScalingRow {
                    run: table.name.clone(),
                    curve: curve.name.clone(),
                    system: table.machine.clone().unwrap_or_default(),
                    vision,
                    ranks: row.ranks,
                    published: row.published,
                    predicted: row.predicted,
                    error: row.error(),
                    fitted: false,
                    assumed: assumed.clone(),
                })?;
            }
        }
    }
    if options.rows {
        session.say(columns(&lines))?;
        for (what, why) in &left {
            session.say(format!("left out: {what}: {why}"))?;
        }
    } else if !left.is_empty() {
        session.say(format!("left out: {} tables and curves; --rows says which and why", left.len()))?;
    }
    session.say(columns(&scores(&all)))?;
    ablation(&tables, options, session)?;
    match &options.plot {
        Some(path) => plot(&all, path),
        None => Ok(()),
    }
}

/// What a row counts for.
struct Scored {
    vision: bool,
    resnet50: bool,
    ranks: u32,
    error: f64,
}

/// Median and 90th percentile of the error, for vision on 8 GPUs and for everything.
fn scores(rows: &[Scored]) -> Vec<Vec<String>> {
    let mut lines =
        vec![["rows", "count", "median error (%)", "90th percentile (%)"].map(String::from).to_vec()];
    type Pick = fn(&Scored) -> bool;
    let groups: [(&str, Pick); 5] = [
        ("ResNet-50, 8 GPUs", |row| row.resnet50 && row.ranks == 8),
        ("vision, 8 GPUs", |row| row.vision && row.ranks == 8),
        ("vision, all", |row| row.vision),
        ("other, all", |row| !row.vision),
        ("all", |_| true),
    ];
    for (name, pick) in groups {
        let mut errors: Vec<f64> = rows.iter().filter(|row| pick(row)).map(|row| row.error).collect();
        if let Some((median, high)) = quantiles(&mut errors) {
            let figures =
                [errors.len().to_string(), format!("{:.1}", 100.0 * median), format!("{:.1}", 100.0 * high)];
            lines.push([vec![name.to_string()], figures.to_vec()].concat());
        }
    }
    lines
}

/// Median and 90th percentile; `None` of nothing.
fn quantiles(values: &mut [f64]) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values.get(((values.len() as f64 - 1.0) * share).round() as usize).copied();
    Some((at(0.5)?, at(0.9)?))
}

/// The score without each term.
fn ablation(tables: &[ScalingTable], options: &Options, session: &mut Session) -> Outcome {
    let mut lines = vec![
        ["without", "vision, 8 GPUs: median error (%)", "all: median error (%)"].map(String::from).to_vec(),
    ];
    for (term, _) in [("nothing", "")].iter().chain(&TERMS) {
        let without = [options.without.clone(), vec![term.to_string()]].concat();
        let (mut vision, mut all) = (Vec::new(), Vec::new());
        for table in tables.iter().filter(|table| table.suspect.is_none() && !table.evaluation) {
            for curve in &table.curves {
                let Ok((rows, _)) = predict(table, curve, &without) else { continue };
                all.extend(rows.iter().map(Predicted::error));
                if is_vision(&table.model) {
                    vision.extend(rows.iter().filter(|row| row.ranks == 8).map(Predicted::error));
                }
            }
        }
        let figures = [&mut vision, &mut all].map(|errors| {
            quantiles(errors).map_or("-".into(), |(median, _)| format!("{:.1}", 100.0 * median))
        });
        lines.push([vec![term.to_string()], figures.to_vec()].concat());
    }
    session.say(format!("\n{}", columns(&lines)))
}

/// How many of the rows are predicted how well: errors in rising order.
fn plot(rows: &[Scored], path: &Path) -> Outcome {
    let sorted = |name: &str, vision: bool| {
        let mut errors: Vec<f64> =
            rows.iter().filter(|row| row.vision == vision).map(|row| row.error).collect();
        errors.sort_by(f64::total_cmp);
        let share = 100.0 / errors.len().max(1) as f64;
        let point =
            |(at, error): (usize, &f64)| Point { x: (at + 1) as f64 * share, y: 100.0 * error, error: 0.0 };
        Series {
            name: name.into(),
            origin: Origin::Simulated,
            points: errors.iter().enumerate().map(point).collect(),
        }
    };
    let percent = |value: f64| format!("{value:.0}");
    let curves = Curves {
        label: "Errors of predicted training throughput, in rising order".into(),
        x: Axis { label: "rows predicted at least as well (%)", log: None, format: percent },
        y: Axis { label: "error of throughput (%)", log: None, format: percent },
        series: [sorted("vision", true), sorted("other", false)]
            .into_iter()
            .filter(|s| !s.points.is_empty())
            .collect(),
        ideal: Some(Ideal { name: "5 %".into(), points: vec![(0.0, 5.0), (100.0, 5.0)] }),
    };
    let figure = curves.draw().map_err(Failure::run)?;
    session::replace(
        path,
        figure.file("Published training throughput, predicted from one GPU's row: errors").as_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(name: &str) -> ScalingTable {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/scaling");
        scaling_tables::read(&folder.join(format!("{name}.json"))).unwrap()
    }

    #[test]
    fn resnet50_on_eight_gpus_is_predicted_from_one() {
        let table = fixture("dle_pytorch_classification_convnets_resnet50v1_5_1");
        let (rows, assumed) = predict(&table, &table.curves[0], &[]).unwrap();
        assert_eq!((rows.len(), rows[0].ranks), (1, 8));
        assert!(rows[0].error() < 0.05, "{} of {}", rows[0].predicted, rows[0].published);
        assert!(assumed[0].contains("256 samples"));
        // Without any term all ranks are as fast as one.
        let bare: Vec<String> = TERMS.iter().map(|(name, _)| name.to_string()).collect();
        let (ideal, _) = predict(&table, &table.curves[0], &bare).unwrap();
        assert!((ideal[0].predicted / (8.0 * 938.0) - 1.0).abs() < 0.01, "{}", ideal[0].predicted);
        assert!(rows[0].predicted < ideal[0].predicted);
    }

    #[test]
    fn more_gpus_are_more_and_never_more_than_so_many_times_one() {
        let table = fixture("dle_mxnet_classification_rn50v1_5_3");
        for curve in &table.curves {
            let (rows, _) = predict(&table, curve, &[]).unwrap();
            assert!(rows.windows(2).all(|pair| pair[0].predicted < pair[1].predicted));
            assert!(rows.iter().all(|row| row.predicted <= curve.points[0].1 * f64::from(row.ranks)));
        }
    }

    #[test]
    fn what_cannot_be_predicted_says_why() {
        let mlperf = fixture("mlperf0.7_dgxa100_resnet");
        assert!(predict(&mlperf, &mlperf.curves[0], &[]).err().unwrap().contains("global batch changes"));
        let unknown = ScalingTable { machine: None, ..fixture("dle_mxnet_classification_rn50v1_5_3") };
        assert!(predict(&unknown, &unknown.curves[0], &[]).err().unwrap().contains("no machine is known"));
    }

    #[test]
    fn quantiles_are_those_of_the_sorted_values() {
        assert_eq!(quantiles(&mut [3.0, 1.0, 2.0]), Some((2.0, 3.0)));
        assert_eq!(quantiles(&mut []), None);
    }
}
