//! Fits the physical parameters to measured rows: least squares on the logarithm of time.
//!
//! ```text
//! minimise   sum of weight x huber(ln predicted - ln measured)  +  sum of ((parameter - prior) / std_dev)^2
//! by         Gauss-Newton with Levenberg's damping; rows far off weigh less in every iteration
//! ```
//!
//! A parameter on which no row depends stays at its prior: so a family of NICs that was never measured keeps the general
//! figure. The more rows a system has in a band, the less each weighs (see [`Prior::evenness`]), so that many runs of
//! one cluster do not dominate the others.

use crate::prepare::Prepared;
use crate::score::band;
use allfold_nccl_model::physics::{COUNT, PARAMETERS, Parameters, PhysicsCase, Terms, closed};
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
    let mut logs = prior.means.clone();
    let mut damping = 1e-3;
    let mut last = objective(&rows, &logs, prior, terms);
    let mut normal = [[0.0; COUNT]; COUNT];
    for _ in 0..40 {
        let (matrix, slope) = normal_equations(&rows, &logs, prior, terms);
        normal = matrix;
        let mut better = false;
        while damping < 1e9 {
            let mut damped = normal;
            (0..COUNT).for_each(|i| damped[i][i] *= 1.0 + damping);
            let Some(step) = solve(&damped, &slope) else { break };
            let trial: Vec<f64> =
                logs.iter().zip(step).map(|(log, step)| log + step.clamp(-0.5, 0.5)).collect();
            let found = objective(&rows, &trial, prior, terms);
            if found < last {
                better = last - found > 1e-7 * last;
                (logs, last, damping) = (trial, found, (damping / 5.0).max(1e-6));
                break;
            }
            damping *= 5.0;
        }
        if !better {
            break;
        }
    }
    let mut systems: Vec<String> = runs.iter().map(|(run, _)| run.system.clone()).collect();
    systems.sort();
    systems.dedup();
    Fit { parameters: Parameters::from_logs(&logs), std_dev: std_devs(&normal), systems }
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

fn residual(row: &RunRow<'_>, parameters: &Parameters, terms: Terms) -> f64 {
    (closed(row.case, parameters, terms).ln() - row.measured) / NOISE
}

fn objective(rows: &[RunRow<'_>], logs: &[f64], prior: &Prior, terms: Terms) -> f64 {
    let parameters = Parameters::from_logs(logs);
    let far = FAR / NOISE;
    let data: f64 = rows
        .iter()
        .map(|row| {
            let off = residual(row, &parameters, terms).abs();
            row.weight * if off < far { off * off } else { far * (2.0 * off - far) }
        })
        .sum();
    let held = logs.iter().zip(&prior.means).zip(&prior.std_devs);
    data + held.map(|((log, mean), std_dev)| ((log - mean) / std_dev).powi(2)).sum::<f64>()
}

type Matrix = [[f64; COUNT]; COUNT];

fn normal_equations(
    rows: &[RunRow<'_>],
    logs: &[f64],
    prior: &Prior,
    terms: Terms,
) -> (Matrix, [f64; COUNT]) {
    const NUDGE: f64 = 1e-4;
    let here = Parameters::from_logs(logs);
    let nudged: Vec<Parameters> = (0..COUNT)
        .map(|number| {
            let mut other = here.clone();
            other.set(number, here.at(number) * NUDGE.exp());
            other
        })
        .collect();
    let (mut matrix, mut slope) = ([[0.0; COUNT]; COUNT], [0.0; COUNT]);
    let mut gradient: Vec<(usize, f64)> = Vec::new();
    for row in rows {
        let off = residual(row, &here, terms);
        let weight = row.weight * ((FAR / NOISE) / off.abs()).min(1.0);
        gradient.clear();
        for (number, other) in nudged.iter().enumerate() {
            let change = (residual(row, other, terms) - off) / NUDGE;
            if change != 0.0 {
                gradient.push((number, change));
            }
        }
        for &(i, a) in &gradient {
            slope[i] -= weight * a * off;
            for &(j, b) in &gradient {
                matrix[i][j] += weight * a * b;
            }
        }
    }
    for i in 0..COUNT {
        let tight = 1.0 / (prior.std_devs[i] * prior.std_devs[i]);
        matrix[i][i] += tight;
        slope[i] -= tight * (logs[i] - prior.means[i]);
    }
    (matrix, slope)
}

/// The lower Cholesky factor of a matrix; `None` if the matrix is not positive definite.
fn factor(matrix: &Matrix) -> Option<Matrix> {
    let mut lower = [[0.0; COUNT]; COUNT];
    for i in 0..COUNT {
        for j in 0..=i {
            let sum: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
            let left = matrix[i][j] - sum;
            lower[i][j] = match (i == j, left > 0.0) {
                (true, false) => return None,
                (true, true) => left.sqrt(),
                (false, _) => left / lower[j][j],
            };
        }
    }
    Some(lower)
}

fn solve(matrix: &Matrix, right: &[f64; COUNT]) -> Option<[f64; COUNT]> {
    let lower = factor(matrix)?;
    let mut x = *right;
    for i in 0..COUNT {
        let sum: f64 = (0..i).map(|k| lower[i][k] * x[k]).sum();
        x[i] = (x[i] - sum) / lower[i][i];
    }
    for i in (0..COUNT).rev() {
        let sum: f64 = (i + 1..COUNT).map(|k| lower[k][i] * x[k]).sum();
        x[i] = (x[i] - sum) / lower[i][i];
    }
    Some(x)
}

/// The square roots of the diagonal of the inverse of `normal`.
fn std_devs(normal: &Matrix) -> Vec<f64> {
    (0..COUNT)
        .map(|i| {
            let mut unit = [0.0; COUNT];
            unit[i] = 1.0;
            solve(normal, &unit).map_or(f64::NAN, |column| column[i].max(0.0).sqrt())
        })
        .collect()
}
