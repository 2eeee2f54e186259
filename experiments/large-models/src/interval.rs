//! Predictions with intervals, and what known rows of a system say about its other rows.
//!
//! ```text
//! covariance of two jobs' errors = sum over parameters of slope x slope x variance   (a system's own parameters, and the fit's doubt)
//!                                + what a system's rows share + what rows of one model share + each row's own
//! known rows move a prediction by their own errors, as far as errors correlate (kriging); nothing is scaled as a whole
//! a known row that is likely to be odd, by its error, moves it less
//! 80 and 95 % intervals = prediction x exp(+- scale x standard deviation); scales from systems left out (split-conformal)
//! ```

use crate::job::TrainingJob;
use crate::parameters::{IntervalScales, STEP_PARAMETERS, StepParameterRow, StepParameters};
use crate::step::{StepTime, step};
use allfold_validation::least_squares::NormalMatrix;

/// Standard deviation of the logarithm that all rows of a system share beyond the parameters.
const SYSTEM: f64 = 0.05;
/// The same of all rows of a model on a system.
const MODEL: f64 = 0.06;
/// A row's own; of mixtures, whose routing and recipes are seldom stated whole.
const ROW: f64 = 0.08;
const ROW_EXPERTS: f64 = 0.20;
/// The share of published rows whose settings are not those that they state, or whose system was disturbed, and the standard deviation of
/// what this adds to the logarithm: equal settings of one system differ by up to 1.8 times.
const ODD_ROWS: f64 = 0.1;
const ODD: f64 = 0.5;
/// The variance of a system's own parameters relative to the square of `varies`: with these five numbers the first row of a system left out
/// tells most about its others.
const OWN: f64 = 2.0;
/// The change of a parameter's logarithm by which slopes are found.
const NUDGE: f64 = 1e-3;

/// A step of a system that was measured.
#[derive(Clone, Copy, Debug)]
pub struct KnownStep<'a> {
    /// What ran.
    pub job: &'a TrainingJob,
    /// Seconds of the step.
    pub seconds: f64,
}

/// A predicted step with its intervals, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictedStep {
    /// The parts of the step, as the parameters alone have them.
    pub parts: StepTime,
    /// The step; known rows may have moved it from the sum of the parts.
    pub seconds: f64,
    /// The standard deviation of the logarithm of the step.
    pub deviation: f64,
    /// Lower and upper end of the 80 % interval.
    pub within80: [f64; 2],
    /// Lower and upper end of the 95 % interval.
    pub within95: [f64; 2],
}

/// Predicts steps with parameters, what is known of their errors, and measured rows of the system.
#[derive(Clone, Debug)]
pub struct StepPredictor {
    parameters: StepParameters,
    /// The variance of each parameter's logarithm.
    variances: Vec<f64>,
    scales: IntervalScales,
    known: Vec<Known>,
    /// The inverse covariance of the known rows times their errors.
    pulls: Vec<f64>,
    covariance: NormalMatrix,
}

/// What the predictor keeps of a known row.
#[derive(Clone, Debug)]
struct Known {
    slopes: Slopes,
    model: String,
}

type Slopes = [f64; STEP_PARAMETERS];

impl StepPredictor {
    /// The predictor with the parameters that ship with Allfold.
    pub fn published() -> StepPredictor {
        let rows = StepParameterRow::published();
        StepPredictor::new(StepParameters::published(), rows, IntervalScales::published())
    }

    /// A predictor with these parameters, whose uncertainty is that of `rows`.
    pub fn new(
        parameters: StepParameters,
        rows: &[StepParameterRow],
        scales: IntervalScales,
    ) -> StepPredictor {
        let variances = rows.iter().map(|row| OWN * row.varies.powi(2) + row.deviation.powi(2)).collect();
        let covariance = NormalMatrix::zero(0);
        StepPredictor { parameters, variances, scales, known: Vec::new(), pulls: Vec::new(), covariance }
    }

    /// The parameters.
    pub fn parameters(&self) -> &StepParameters {
        &self.parameters
    }

    /// This predictor for a system on which these steps were measured.
    pub fn knowing(&self, steps: &[KnownStep<'_>]) -> StepPredictor {
        let known: Vec<Known> = steps
            .iter()
            .map(|step| Known { slopes: self.slopes(step.job), model: step.job.model.name.clone() })
            .collect();
        let mut covariance = NormalMatrix::zero(known.len());
        for (i, (one, known_step)) in known.iter().zip(steps).enumerate() {
            for (j, other) in known.iter().enumerate() {
                *covariance.at_mut(i, j) = self.shared(one, other);
            }
            *covariance.at_mut(i, i) += own(known_step.job).powi(2);
        }
        let errors: Vec<f64> = steps
            .iter()
            .map(|known| (known.seconds / step(known.job, &self.parameters).total()).ln())
            .collect();
        let errors: Vec<f64> =
            errors.iter().enumerate().map(|(row, error)| error - odd(&covariance, &errors, row)).collect();
        let pulls = covariance.solve(&errors).unwrap_or_else(|| vec![0.0; errors.len()]);
        StepPredictor { known, pulls, covariance, ..self.clone() }
    }

    /// Predicts a step.
    pub fn predict(&self, job: &TrainingJob) -> PredictedStep {
        let parts = step(job, &self.parameters);
        let this = self.of(job);
        let with: Vec<f64> = self.known.iter().map(|known| self.shared(known, &this)).collect();
        let pull: f64 = with.iter().zip(&self.pulls).map(|(with, pull)| with * pull).sum();
        let seconds = parts.total() * pull.exp();
        let variance = self.remaining(&this, &this, &with, &with) + own(job).powi(2);
        let deviation = variance.max(1e-6).sqrt();
        let [scale80, scale95] = self.scales.of(job.model.experts.is_some());
        let within = |scale: f64| [seconds * (-scale * deviation).exp(), seconds * (scale * deviation).exp()];
        PredictedStep { parts, seconds, deviation, within80: within(scale80), within95: within(scale95) }
    }

    /// The odds that `one` has a shorter time per token and GPU than `other` on the same system.
    pub fn odds(&self, one: &TrainingJob, other: &TrainingJob) -> f64 {
        let [a, b] = [one, other].map(|job| self.of(job));
        let [with_a, with_b] =
            [&a, &b].map(|job| self.known.iter().map(|known| self.shared(known, job)).collect::<Vec<f64>>());
        let variance = self.remaining(&a, &a, &with_a, &with_a) + self.remaining(&b, &b, &with_b, &with_b)
            - 2.0 * self.remaining(&a, &b, &with_a, &with_b)
            + own(one).powi(2)
            + own(other).powi(2);
        let cost = |job: &TrainingJob| {
            (self.predict(job).seconds * f64::from(job.layout.gpus) / job.layout.tokens()).ln()
        };
        let scale = self.scales.of(one.model.experts.is_some())[0] / NORMAL80;
        below((cost(other) - cost(one)) / (variance.max(1e-6).sqrt() * scale))
    }

    fn of(&self, job: &TrainingJob) -> Known {
        Known { slopes: self.slopes(job), model: job.model.name.clone() }
    }

    /// The covariance that errors of two rows of a system have.
    fn shared(&self, one: &Known, other: &Known) -> f64 {
        let slopes = one.slopes.iter().zip(&other.slopes).zip(&self.variances);
        let parameters: f64 = slopes.map(|((one, other), variance)| one * other * variance).sum();
        let model = if one.model == other.model { MODEL * MODEL } else { 0.0 };
        parameters + SYSTEM * SYSTEM + model
    }

    /// What remains of the covariance of two rows after the known ones.
    fn remaining(&self, one: &Known, other: &Known, with_one: &[f64], with_other: &[f64]) -> f64 {
        let told = self.covariance.solve(with_other).unwrap_or_default();
        self.shared(one, other) - with_one.iter().zip(told).map(|(with, told)| with * told).sum::<f64>()
    }

    /// How the logarithm of a step changes with that of each parameter.
    fn slopes(&self, job: &TrainingJob) -> Slopes {
        let (here, logs) = (step(job, &self.parameters).total().ln(), self.parameters.logs());
        let mut logs = logs;
        std::array::from_fn(|number| {
            if self.variances.get(number).is_none_or(|variance| *variance == 0.0) {
                return 0.0;
            }
            let before = logs[number];
            logs[number] += NUDGE;
            let there = step(job, &StepParameters::from_logs(&logs)).total().ln();
            logs[number] = before;
            (there - here) / NUDGE
        })
    }
}

/// What of a known row's error beyond what the other known rows say of it is odd: all of it times the odds that the row is odd.
fn odd(covariance: &NormalMatrix, errors: &[f64], row: usize) -> f64 {
    let unit: Vec<f64> = (0..errors.len()).map(|at| f64::from(u8::from(at == row))).collect();
    let Some(inverse) = covariance.solve(&unit) else { return 0.0 };
    let variance = 1.0 / inverse.get(row).copied().unwrap_or(1.0);
    let error = variance * inverse.iter().zip(errors).map(|(inverse, error)| inverse * error).sum::<f64>();
    let density = |variance: f64| (-error * error / (2.0 * variance)).exp() / variance.sqrt();
    let [odd, usual] = [ODD_ROWS * density(variance + ODD * ODD), (1.0 - ODD_ROWS) * density(variance)];
    error * odd / (odd + usual)
}

/// The standard deviation of a row's own error.
fn own(job: &TrainingJob) -> f64 {
    if job.model.experts.is_some() { ROW_EXPERTS } else { ROW }
}

/// Beyond so many standard deviations on either side is a fifth of a normal distribution.
const NORMAL80: f64 = 1.2816;

/// The share of a standard normal distribution below a value (Abramowitz and Stegun, 26.2.17: within 1e-7).
fn below(value: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * value.abs());
    let series = t
        * (0.319_381_53
            + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let tail = (-value * value / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * series;
    if value > 0.0 { 1.0 - tail } else { tail }
}
