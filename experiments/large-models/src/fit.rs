//! Fits the physical parameters to published rows: robust least squares of the logarithm of a step, with priors, and one offset for each
//! system, which takes what all its rows have in common and no parameter explains.

use crate::job::TrainingJob;
use crate::parameters::{STEP_PARAMETERS, StepParameterRow, StepParameters};
use crate::step::step;
use allfold_validation::least_squares::{Residuals, RobustPrior, minimise};
use std::collections::BTreeMap;

/// The expected standard deviation of a row's logarithm.
const NOISE: f64 = 0.06;
/// The expected standard deviation of a system's offset.
const OFFSET: f64 = 0.08;
/// Beyond this many standard deviations a row is far off.
const FAR: f64 = 2.0;
/// Rows of a system beyond this number weigh less each.
const MANY: f64 = 12.0;

/// A measured step of a fit.
#[derive(Clone, Copy, Debug)]
pub struct StepSample<'a> {
    /// What ran.
    pub job: &'a TrainingJob,
    /// Measured seconds of a step.
    pub seconds: f64,
    /// The cluster.
    pub system: &'a str,
    /// Whether the source warns of large errors.
    pub noisy: bool,
}

/// The result of a fit.
#[derive(Clone, Debug)]
pub struct StepFit {
    /// The fitted parameters.
    pub parameters: StepParameters,
    /// The logarithm of each system's offset.
    pub offsets: BTreeMap<String, f64>,
    /// Standard deviations of the parameters' logarithms; 0 for those that are held.
    pub std_devs: Vec<f64>,
}

struct Samples<'a> {
    samples: &'a [StepSample<'a>],
    logs: Vec<f64>,
    weights: Vec<f64>,
    /// The number of each sample's system.
    systems: Vec<usize>,
    /// The parameters that are fitted.
    free: Vec<usize>,
    /// The logarithms of all parameters; those of held ones stay.
    held: Vec<f64>,
    /// Whether a parameter has an effect on a sample.
    acts: Vec<bool>,
}

impl Samples<'_> {
    fn parameters(&self, unknowns: &[f64]) -> StepParameters {
        let mut logs = self.held.clone();
        self.free.iter().zip(unknowns).for_each(|(number, log)| logs[*number] = *log);
        StepParameters::from_logs(&logs)
    }
}

impl Residuals for Samples<'_> {
    type State = (StepParameters, Vec<f64>);

    fn rows(&self) -> usize {
        self.samples.len()
    }

    fn state(&self, unknowns: &[f64], nudged: Option<(usize, f64)>) -> Self::State {
        let mut unknowns = unknowns.to_vec();
        if let Some((number, by)) = nudged {
            unknowns[number] += by;
        }
        (self.parameters(&unknowns), unknowns.split_off(self.free.len()))
    }

    fn weight(&self, row: usize) -> f64 {
        self.weights[row]
    }

    fn residual(&self, row: usize, (parameters, offsets): &Self::State) -> f64 {
        let predicted = step(self.samples[row].job, parameters).total().ln();
        (predicted + offsets[self.systems[row]] - self.logs[row]) / NOISE
    }

    fn slope(&self, row: usize, unknown: usize) -> Option<f64> {
        match unknown.checked_sub(self.free.len()) {
            Some(system) => Some(if self.systems[row] == system { 1.0 / NOISE } else { 0.0 }),
            None => (!self.acts[row * self.free.len() + unknown]).then_some(0.0),
        }
    }
}

/// Fits to these samples from the parameters `start` on; `prior` are the rows of the file of parameters.
pub fn fit(samples: &[StepSample<'_>], prior: &[StepParameterRow], start: &StepParameters) -> StepFit {
    let mut names: Vec<&str> = samples.iter().map(|sample| sample.system).collect();
    names.sort_unstable();
    names.dedup();
    let free: Vec<usize> = (0..prior.len()).filter(|number| prior[*number].std_dev > 0.0).collect();
    let held: Vec<f64> = prior.iter().map(|row| row.prior.ln()).collect();
    let systems: Vec<usize> =
        samples.iter().map(|sample| names.partition_point(|name| *name < sample.system)).collect();
    let mut counts = vec![0.0; names.len()];
    systems.iter().for_each(|system| counts[*system] += 1.0);
    let weights =
        samples.iter().zip(&systems).map(|(sample, system)| weight(sample, counts[*system])).collect();
    let logs = samples.iter().map(|sample| sample.seconds.ln()).collect();
    let acts = samples.iter().flat_map(|sample| acting(sample.job, &free, start)).collect();
    let rows = Samples { samples, logs, weights, systems, free, held, acts };
    let started = start.logs();
    let mut unknowns: Vec<f64> = rows.free.iter().map(|number| started[*number]).collect();
    let mut means: Vec<f64> = rows.free.iter().map(|number| rows.held[*number]).collect();
    let mut std_devs: Vec<f64> = rows.free.iter().map(|number| prior[*number].std_dev).collect();
    for vector in [&mut unknowns, &mut means] {
        vector.resize(vector.len() + names.len(), 0.0);
    }
    std_devs.resize(unknowns.len(), OFFSET);
    let setting = RobustPrior { means: &means, std_devs: &std_devs, far: FAR };
    let found = minimise(&rows, setting, &unknowns);
    let parameters = rows.parameters(&found.unknowns);
    let offsets =
        names.iter().map(|name| (*name).to_string()).zip(found.unknowns[rows.free.len()..].to_vec());
    let mut deviations = vec![0.0; STEP_PARAMETERS];
    rows.free.iter().zip(found.std_devs()).for_each(|(number, deviation)| deviations[*number] = deviation);
    StepFit { parameters, offsets: offsets.collect(), std_devs: deviations }
}

/// The weight of a sample in a system of so many: squares of a half for experts, whose settings are seldom all stated, and of 0.7 where
/// the source warns.
fn weight(sample: &StepSample<'_>, count: f64) -> f64 {
    let kind = match (sample.job.model.experts.is_some(), sample.noisy) {
        (true, _) => 0.25,
        (false, true) => 0.49,
        (false, false) => 1.0,
    };
    kind * (MANY / count).min(1.0)
}

/// Which of the parameters have an effect on a job: a large change changes its step.
fn acting<'a>(
    job: &'a TrainingJob,
    free: &'a [usize],
    at: &StepParameters,
) -> impl Iterator<Item = bool> + 'a {
    let (here, logs) = (step(job, at).total(), at.logs());
    free.iter().map(move |number| {
        [-0.4, 0.4].iter().any(|by| {
            let mut logs = logs.clone();
            logs[*number] += by;
            step(job, &StepParameters::from_logs(&logs)).total() != here
        })
    })
}
