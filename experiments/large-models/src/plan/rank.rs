//! All layouts of a task, ranked.

use super::search;
use super::task::PlanTask;
use crate::interval::{PredictedStep, StepPredictor};
use crate::job::{OperandPrecision, TrainingJob};
use crate::layout::{Layout, Recompute};
use crate::memory::{JobMemory, memory};
use crate::model::LargeModel;
use crate::step::step;
use std::collections::BTreeMap;

/// A layout with its predictions.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedLayout {
    /// The job with this layout.
    pub job: TrainingJob,
    /// The memory of the fullest GPU.
    pub memory: JobMemory,
    /// The odds that it fits.
    pub fits: f64,
    /// The step.
    pub step: PredictedStep,
    /// The odds that this layout is faster than the one ranked next; `None` for the last one.
    pub before_next: Option<f64>,
}

impl RankedLayout {
    /// Tokens of all GPUs in a second.
    pub fn tokens_per_s(&self) -> f64 {
        self.job.layout.tokens() / self.step.seconds
    }

    /// The share of the GPUs' peak, at the job's precision, that goes into the model's own products.
    pub fn mfu(&self) -> f64 {
        use OperandPrecision::{Bf16, F16, F32, Nvfp4};
        let [half, eight, four] = self.job.cluster.flops;
        let peak = match self.job.precision {
            F32 | Bf16 | F16 => half,
            Nvfp4 => four,
            _ => eight,
        };
        let flops = flops_per_token(&self.job.model, self.job.layout.sequence) * self.job.layout.tokens();
        flops / self.step.seconds / f64::from(self.job.layout.gpus) / peak
    }
}

/// FLOP of a model for each token, forward and backward: six for each parameter that a token meets, and those of causal attention.
pub fn flops_per_token(model: &LargeModel, sequence: u32) -> f64 {
    let count = model.parameters();
    let routed = model.experts.map_or(0.0, |experts| f64::from(experts.top_k) / f64::from(experts.count));
    let head = f64::from(model.vocab) * f64::from(model.hidden);
    let [attention, ..] = model.kinds();
    let width = model.latent.map_or(model.head_width(), |latent| {
        f64::from(latent.plain_dim + latent.rotary_dim + latent.value_dim) / 2.0
    });
    let scores = 6.0 * attention * f64::from(model.heads) * width * f64::from(sequence);
    6.0 * (count.dense + routed * count.experts + head) + scores
}

/// Layouts in order of their time, and what was left out.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedPlan {
    /// The fastest layouts that fit, the fastest first.
    pub layouts: Vec<RankedLayout>,
    /// All layouts that were looked at.
    pub tried: u32,
    /// Those that fit.
    pub fitting: u32,
    /// Why the others were left out, with their number.
    pub left_out: BTreeMap<&'static str, u32>,
    /// The least memory that a layout needs, in bytes, where none fits.
    pub least_memory: Option<f64>,
}

/// The least odds to fit of a layout that is proposed.
pub(super) const LEAST_ODDS: f64 = 0.8;

/// Ranks the layouts of a task; `most` are kept. Layouts of equal time keep the order of the search.
pub fn plan(task: &PlanTask, predictor: &StepPredictor, most: usize) -> RankedPlan {
    let mut left_out = BTreeMap::new();
    let (mut tried, mut least_memory) = (0, None::<f64>);
    let mut fitting: Vec<(f64, TrainingJob, JobMemory, f64)> = Vec::new();
    search::layouts(task, &mut |layout| {
        tried += 1;
        let mut leave = |why| *left_out.entry(why).or_insert(0) += 1;
        if let Some(why) = search::unsuitable(&layout, task) {
            return leave(why);
        }
        let job = task.job(layout);
        if search::repeats(&job) {
            return leave(search::COPY);
        }
        let used = memory(&job);
        let fits = used.fits(job.cluster.capacity);
        if fits < LEAST_ODDS {
            least_memory = Some(least_memory.map_or(used.needed(), |least| least.min(used.needed())));
            return leave("more memory than a GPU has");
        }
        let seconds = step(&job, predictor.parameters()).total();
        if !seconds.is_finite() {
            return leave("no time can be predicted");
        }
        fitting.push((seconds, job, used, fits));
    });
    fitting.sort_by(|one, other| one.0.total_cmp(&other.0));
    let count = fitting.len() as u32;
    let mut layouts: Vec<RankedLayout> = fitting
        .into_iter()
        .take(most)
        .map(|(_, job, memory, fits)| {
            let step = predictor.predict(&job);
            RankedLayout { job, memory, fits, step, before_next: None }
        })
        .collect();
    for at in 1..layouts.len() {
        let odds = predictor.odds(&layouts[at - 1].job, &layouts[at].job);
        layouts[at - 1].before_next = Some(odds);
    }
    RankedPlan { layouts, tried, fitting: count, left_out, least_memory: least_memory.filter(|_| count == 0) }
}

/// A layout in a line: `tp 4, pp 2, dp 64, zero1, micro-batch 1`; what is 1 or nothing is left out.
pub fn name(layout: &Layout) -> String {
    let sizes = [
        ("tp", layout.tensor),
        ("pp", layout.pipeline),
        ("chunks", layout.chunks),
        ("cp", layout.context),
        ("ep", layout.expert),
        ("dp", layout.data()),
    ];
    let mut words: Vec<String> =
        sizes.iter().filter(|(_, size)| *size > 1).map(|(axis, size)| format!("{axis} {size}")).collect();
    let sharding = format!("{:?}", layout.sharding).to_lowercase();
    words.extend(
        [sharding, format!("micro-batch {}", layout.micro_batch)].into_iter().filter(|word| word != "none"),
    );
    if layout.recompute != Recompute::None {
        words.push(format!("{:?} recomputation", layout.recompute).to_lowercase());
    }
    words.join(", ")
}
