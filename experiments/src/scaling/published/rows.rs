//! The rows of one published curve, predicted from its row of one GPU.

use crate::predict::exchanges::Exchanges;
use allfold_collectives::Plan;
use allfold_prediction::{
    DdpOptions, ExchangeModel, NcclModel, Overheads, SimulatedExchange, StepPrediction, UniformCosts,
    WorkloadTraining, predict_steps, predict_workload,
};
use allfold_sim::machines::GpuRates;
use allfold_sim::machines::presets::Preset;
use allfold_sim::{Picos, Sharing, Topology};
use allfold_trainer::buckets::Caps;
use allfold_trainer::workloads::{Precision, Workload};
use allfold_validation::scaling_tables::{Curve, ScalingTable};

/// The terms of the prediction: the name, and what the term is and where its size is from. No term counts the multiprocessors that
/// an exchange's channels take: such a term improved no table's prediction.
pub const TERMS: [(&str, &str); 3] = [
    ("communication", "buckets that the backward pass does not hide, by the fitted model of NCCL"),
    (
        "device-variation",
        "GPUs of one kind differ in speed by 2 % (standard deviation) and the slowest is waited for; P. Sinha et al., \
         \"Not all GPUs are created equal\", SC 2022, found 8 % between the ends for ResNet-50",
    ),
    (
        "jitter",
        "1 ms (standard deviation) by which a host is late with a step; the latest is waited for; assumed",
    ),
];

/// The standard deviation of the speed of GPUs of one kind, as a share of a step (P. Sinha et al., SC 2022).
pub const DEVICE_VARIATION: f64 = 0.02;
/// The standard deviation of a host's lateness in a step, in microseconds (assumed).
pub const JITTER_US: f64 = 1000.0;

/// Parameters of the networks in published tables that have no layer table here, a line for each: a part of the model's path, and
/// millions of parameters. From the papers and the repositories' model descriptions; approximate for detectors and U-Nets, which is
/// enough: an exchange takes about 1 ms of a step of 100 ms.
const PARAMETERS: &str = include_str!("parameters.txt");

/// Millions of parameters of the model at a path; `None` if they are not known.
fn millions(path: &str) -> Option<f64> {
    let mut rows = PARAMETERS.lines().filter_map(|line| line.split_once(' '));
    rows.find(|(words, _)| path.contains(words))?.1.parse().ok()
}

/// One row of a published curve, with its prediction.
pub struct Predicted {
    /// The number of GPUs.
    pub ranks: u32,
    /// Samples per second as published.
    pub published: f64,
    /// Samples per second as predicted.
    pub predicted: f64,
}

impl Predicted {
    /// |predicted / published - 1|.
    pub fn error(&self) -> f64 {
        (self.predicted / self.published - 1.0).abs()
    }
}

/// The predicted rows of a published curve.
pub struct Rows {
    /// The curve's rows of more than one GPU.
    pub rows: Vec<Predicted>,
    /// Assumptions about facts that the table does not give.
    pub assumed: Vec<String>,
}

/// The reason why a table or a curve is left out.
pub type Left = String;

/// Whether a table is of ResNet-50, which has a layer table here.
pub fn is_resnet50(model: &str) -> bool {
    let model = model.to_lowercase();
    model.contains("resnet50") || model.contains("rn50")
}

/// A curve, with the throughput of its row of one GPU.
struct Base<'a> {
    preset: Preset,
    gpu: &'static GpuRates,
    /// The layer table of the model, if there is one.
    workload: Option<Workload>,
    /// Millions of parameters, for a model without a layer table.
    millions: f64,
    curve: &'a Curve,
    /// The number of samples per GPU and step.
    batch: u32,
    /// The published rate of one GPU, in samples per second.
    one: f64,
}

/// Predicts a curve's rows from its first row. Returns them with the assumptions that were made.
///
/// # Errors
/// Why the curve cannot be predicted.
pub fn predict(table: &ScalingTable, curve: &Curve, without: &[String]) -> Result<Rows, Left> {
    let mut assumed = Vec::new();
    let base = base(table, curve, &mut assumed)?;
    let has = |term: &str| !without.iter().any(|name| name == term);
    let terms = Overheads {
        device_variation: if has("device-variation") { DEVICE_VARIATION } else { 0.0 },
        jitter_us: if has("jitter") { JITTER_US } else { 0.0 },
        ..Overheads::NONE
    };
    let rows = curve.points.iter().filter(|(gpus, _)| *gpus > 1).map(|&(ranks, published)| {
        let system =
            Exchanges::Nccl.system(&base.preset.name, ranks).map_err(|failure| failure.to_string())?;
        let topology = Topology::named(&base.preset.name, ranks).map_err(|error| error.to_string())?;
        let plan = Plan::default();
        let simulated = SimulatedExchange::new(&topology, topology.costs(), Sharing::default(), &plan);
        let system = system.ok_or("NCCL has no model of it")?;
        let mut nccl = NcclModel::new(&system, simulated);
        let prediction = match has("communication") {
            true => base.step(terms, ranks, &mut nccl),
            false => base.step_alone(terms, ranks, &mut nccl),
        }?;
        // The table's samples may be tokens, so the prediction scales the published rate of one GPU.
        let gain = f64::from(ranks) * base.alone() * base.batches() / prediction.time.total().as_secs();
        Ok(Predicted { ranks, published, predicted: base.one * gain })
    });
    Ok(Rows { rows: rows.collect::<Result<_, Left>>()?, assumed })
}

/// The row of one GPU of a curve, from which predictions start. A curve without such a row is refused.
fn base<'a>(table: &ScalingTable, curve: &'a Curve, assumed: &mut Vec<String>) -> Result<Base<'a>, Left> {
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
    let gpu = GpuRates::named(&preset.gpu).map_err(|error| error.to_string())?;
    let batch = curve.batch.unwrap_or_else(|| {
        let batch =
            if curve.precision == Precision::Half || gpu.memory.gb_per_s() > 1500.0 { 256 } else { 128 };
        assumed.push(format!("{batch} samples a GPU and step"));
        batch
    });
    let millions = millions(&table.model.to_lowercase());
    let workload = match is_resnet50(&table.model) {
        true => Some(Workload::named("resnet50").map_err(|error| error.to_string())?),
        false => None,
    };
    if workload.is_none() && millions.is_none() {
        return Err(format!("how many parameters {} has is not known", table.model));
    }
    Ok(Base { preset, gpu, workload, millions: millions.unwrap_or(1.0), curve, batch, one })
}

impl Base<'_> {
    /// Micro-batches of a step, which exchanges gradients once; 1 for a model with a layer table.
    fn batches(&self) -> f64 {
        if self.workload.is_some() { 1.0 } else { f64::from(self.curve.accumulation) }
    }

    /// The time of a micro-batch on one GPU, in seconds.
    fn alone(&self) -> f64 {
        f64::from(self.batch) / self.one
    }

    /// The time of a step on one GPU, in seconds.
    fn step_of_one(&self) -> f64 {
        self.alone() * self.batches()
    }

    /// The time of a step with its exchanges.
    fn step(
        &self,
        terms: Overheads,
        ranks: u32,
        nccl: &mut dyn ExchangeModel,
    ) -> Result<StepPrediction, Left> {
        let prediction = match &self.workload {
            Some(workload) => {
                let base =
                    WorkloadTraining::new(workload, self.gpu, self.curve.precision, self.batch as usize);
                let job = WorkloadTraining { measured: Some(self.one), terms, ..base };
                predict_workload(&job, ranks, nccl)
            }
            None => {
                let elements = (self.millions * 1e6) as usize;
                let steps = UniformCosts::new(elements, Picos((self.step_of_one() * 1e12) as u64));
                let batch = self.batch as usize * self.curve.accumulation as usize;
                let caps = Caps { first: 1 << 20, rest: 25 << 20 };
                let rules =
                    DdpOptions { batch, accumulate: 1, caps: Some(caps), views: false, scaler: false };
                predict_steps(&steps, rules, ranks, nccl).map(|mut prediction| {
                    terms.apply(&mut prediction);
                    prediction
                })
            }
        };
        prediction.map_err(|error| error.to_string())
    }

    /// The time of a step without its exchanges.
    fn step_alone(
        &self,
        terms: Overheads,
        ranks: u32,
        nccl: &mut dyn ExchangeModel,
    ) -> Result<StepPrediction, Left> {
        let steps = UniformCosts::new(1, Picos((self.step_of_one() * 1e12) as u64));
        let batch = self.batch as usize;
        let rules = DdpOptions { batch, accumulate: 1, caps: None, views: false, scaler: false };
        let mut prediction = predict_steps(&steps, rules, ranks, nccl).map_err(|error| error.to_string())?;
        terms.apply(&mut prediction);
        Ok(prediction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allfold_validation::scaling_tables;
    use std::path::Path;

    fn fixture(name: &str) -> ScalingTable {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/scaling");
        scaling_tables::read(&folder.join(format!("{name}.json"))).unwrap()
    }

    #[test]
    fn resnet50_on_eight_gpus_is_predicted_from_one() {
        let table = fixture("dle_pytorch_classification_convnets_resnet50v1_5_1");
        let Rows { rows, assumed } = predict(&table, &table.curves[0], &[]).unwrap();
        assert_eq!((rows.len(), rows[0].ranks), (1, 8));
        assert!(rows[0].error() < 0.05, "{} of {}", rows[0].predicted, rows[0].published);
        assert!(assumed[0].contains("256 samples"));
        // Without any overhead, each of the 8 GPUs is as fast as one alone.
        let bare: Vec<String> = TERMS.iter().map(|(name, _)| name.to_string()).collect();
        let ideal = predict(&table, &table.curves[0], &bare).unwrap().rows;
        assert!((ideal[0].predicted / (8.0 * 938.0) - 1.0).abs() < 0.01, "{}", ideal[0].predicted);
        assert!(rows[0].predicted < ideal[0].predicted);
    }

    #[test]
    fn more_gpus_are_more_and_never_more_than_so_many_times_one() {
        let table = fixture("dle_mxnet_classification_rn50v1_5_3");
        for curve in &table.curves {
            let rows = predict(&table, curve, &[]).unwrap().rows;
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
}
