//! Fits the physical parameters to measured rows: least squares on the logarithm of time.
//!
//! A parameter on which no row depends stays at its prior: so a family of NICs that was never measured keeps the general
//! figure. The more rows a system has in a band, the less each weighs (see [`Prior::evenness`]), so that many runs of
//! one cluster do not dominate the others.

use crate::least_squares::{Residuals, RobustPrior, minimise};
use crate::prepare::Prepared;
use crate::score::band;
use allfold_nccl_model::physics::{PARAMETERS, Parameters, PhysicsCase, Terms, closed};
use std::collections::BTreeMap;

/// Beyond this difference of logarithms a row is far off.
const FAR: f64 = 0.25;
/// The expected standard deviation of a row's logarithm, from noise alone.
const NOISE: f64 = 0.15;

/// The result of a fit.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The fitted parameters.
    pub parameters: Parameters,
    /// The standard deviation of each parameter's logarithm.
    pub std_dev: Vec<f64>,
    /// The systems of the runs.
    pub systems: Vec<String>,
}

impl Fit {
    /// Whether the runs determine the parameter of this number: its uncertainty fell.
    pub fn tells(&self, number: usize) -> bool {
        self.std_dev[number] < 0.95 * PARAMETERS[number].std_dev
    }
}

/// One row of the fit.
struct RunRow<'a> {
    case: &'a PhysicsCase,
    measured: f64,
    weight: f64,
}

/// Fits to these runs, from this prior.
pub fn fit<'a>(runs: impl Iterator<Item = &'a Prepared>, prior: &Prior, terms: Terms) -> Fit {
    fit_weighed(&runs.map(|run| (run, 1.0)).collect::<Vec<_>>(), prior, terms)
}

/// [`fit`] with a weight for each run.
pub fn fit_weighed(runs: &[(&Prepared, f64)], prior: &Prior, terms: Terms) -> Fit {
    let mut counts: BTreeMap<(&str, usize), f64> = BTreeMap::new();
    for (run, _) in runs {
        run.rows.iter().for_each(|row| *counts.entry((&run.system, band(row.bytes))).or_default() += 1.0);
    }
    let mut rows = Vec::new();
    for (run, times) in runs {
        for row in &run.rows {
            let count = counts.get(&(&*run.system, band(row.bytes))).copied().unwrap_or(1.0);
            rows.push(RunRow {
                case: &row.case,
                measured: row.measured_us.ln(),
                weight: times * count.powf(-prior.evenness),
            });
        }
    }
    let setting = RobustPrior { means: &prior.means, std_devs: &prior.std_devs, far: FAR / NOISE };
    let found = minimise(&RunRows { rows, terms }, setting, &prior.means);
    let mut systems: Vec<String> = runs.iter().map(|(run, _)| run.system.clone()).collect();
    systems.sort();
    systems.dedup();
    Fit { parameters: Parameters::from_logs(&found.unknowns), std_dev: found.std_devs(), systems }
}

/// The prior of a fit: a normal distribution of the parameters' logarithms.
#[derive(Clone, Debug)]
pub struct Prior {
    /// The means of the parameters' logarithms.
    pub means: Vec<f64>,
    /// Standard deviations of the logarithms.
    pub std_devs: Vec<f64>,
    /// The power of a system's number of rows in a band of sizes by which the weight of these rows is reduced: with 0 every row has
    /// the same weight, with 1 all rows of a system in a band together.
    pub evenness: f64,
}

impl Default for Prior {
    fn default() -> Prior {
        Prior {
            means: Parameters::default().logs(),
            std_devs: PARAMETERS.iter().map(|parameter| parameter.std_dev).collect(),
            evenness: 0.7,
        }
    }
}

/// The rows of a fit, and the terms of the model that count.
struct RunRows<'a> {
    rows: Vec<RunRow<'a>>,
    terms: Terms,
}

impl Residuals for RunRows<'_> {
    type State = Parameters;

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn state(&self, unknowns: &[f64], nudged: Option<(usize, f64)>) -> Parameters {
        let mut parameters = Parameters::from_logs(unknowns);
        if let Some((number, by)) = nudged {
            parameters.set(number, parameters.at(number) * by.exp());
        }
        parameters
    }

    fn weight(&self, row: usize) -> f64 {
        self.rows[row].weight
    }

    fn residual(&self, row: usize, parameters: &Parameters) -> f64 {
        let row = &self.rows[row];
        (closed(row.case, parameters, self.terms).ln() - row.measured) / NOISE
    }
}
