//! The probability of every cause by the residuals of a run.
//!
//! ```text
//! residual = ln measured - ln predicted         Student's t over all rows; covariance = parameters + run + near sizes + row
//! probability of a cause = prior x mean likelihood of its degrees, over the sum of all
//! ```

use super::candidate::Candidate;
use super::cause::SlowCause;
use super::evidence::Evidence;
use crate::file::ParameterFile;
use crate::least_squares::NormalMatrix;
use crate::prepare::{GivenMachine, PreparedRow};
use crate::runs::Run;
use crate::spread::{Spread, spread_of};
use allfold_nccl_model::physics::{COUNT, Parameters};
use allfold_report::records::TimeInterval;
use allfold_schedules::Collective;

/// The probability, before anything is measured, that nothing is wrong.
const HEALTHY: f64 = 0.9;
/// The number of causes that share the rest, [`SlowCause::Other`] included.
const CAUSES: f64 = 1.0 + SlowCause::ALL.len() as f64;
/// Standard deviation of a factor that all rows of a run share.
const OF_RUN: f64 = 0.05;
/// Standard deviation of errors that near sizes share.
const OF_SIZES: f64 = 0.10;
/// Both where no cause explains the run.
const FAR: [f64; 2] = [1.0, 0.6];
/// Sizes are near within this many doublings.
const NEAR: f64 = 3.0;
/// Standard deviation of a row's own noise.
const OF_ROW: f64 = 0.05;
/// Degrees of freedom of Student's t: how far rows may be off that no cause explains.
const FREEDOM: f64 = 6.0;
/// A candidate whose times are all nearer to the healthy ones than this, in logarithms, changes nothing at these sizes.
const SAME: f64 = 0.02;
/// The collectives by which causes may be told apart.
const CALLS: [Collective; 4] =
    [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];
/// The width in logarithms of the 95 % interval of a parameter, in standard deviations.
const WIDTH: f64 = 3.92;
/// The step in logarithms by which parameters are changed.
const STEP: f64 = 0.02;

/// A candidate with what does not depend on the measured times.
struct Judged {
    candidate: Candidate,
    times: Vec<f64>,
    lower: NormalMatrix,
    log_det: f64,
}

/// Judges the times of one run's sizes.
pub struct Judge {
    all: Vec<Judged>,
    /// The parameters of the predictions.
    pub parameters: Parameters,
    /// The intervals of the predictions.
    pub spreads: Vec<Spread>,
    /// Causes that change nothing at the sizes of the run.
    pub without_effect: Vec<SlowCause>,
}

/// A cause with its probability, the most likely degree of it, and the sizes that tell it.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The cause.
    pub cause: SlowCause,
    /// The cause in its most likely degree, in words.
    pub title: String,
    /// The place of this degree among [`Judge::candidates`].
    pub candidate: usize,
    /// The probability of the cause, 0 to 1.
    pub probability: f64,
    /// The predicted time of every row in microseconds.
    pub times: Vec<f64>,
}

impl Judge {
    /// The candidates for a run's slowness, on the machine that is `given` or that the run describes.
    ///
    /// # Errors
    /// The run cannot be predicted.
    pub fn new(run: &Run, given: Option<&GivenMachine>, file: &ParameterFile) -> Result<Judge, String> {
        let parameters = file.parameters();
        let std_devs = std_devs(file);
        let candidates = Candidate::all(run, given)?;
        let Some(healthy) = candidates.first().map(|healthy| healthy.times(&parameters)) else {
            return Err("the run has no rows".into());
        };
        let (mut all, mut without_effect) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let times = candidate.times(&parameters);
            if SlowCause::ALL.contains(&candidate.cause) && largest_change(&times, &healthy) < SAME {
                without_effect.push(candidate.cause);
                continue;
            }
            let covariance = covariance(&candidate, &times, &parameters, &std_devs);
            let Some(lower) = covariance.factor() else { continue };
            let log_det = (0..times.len()).map(|row| 2.0 * lower.at(row, row).ln()).sum();
            all.push(Judged { candidate, times, lower, log_det });
        }
        without_effect.retain(|cause| !all.iter().any(|judged| judged.candidate.cause == *cause));
        without_effect.dedup();
        Ok(Judge { all, parameters, spreads: file.spreads(), without_effect })
    }

    /// The candidates that change a time; the first is the healthy run.
    pub fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        self.all.iter().map(|judged| &judged.candidate)
    }

    /// The healthy run, with the time of every row in microseconds and the interval of that.
    pub fn expected(&self) -> impl Iterator<Item = (&PreparedRow, f64, TimeInterval)> {
        self.all.iter().take(1).flat_map(|judged| judged.candidate.run.rows.iter().zip(&judged.times)).map(
            |(row, &time)| {
                let spread = spread_of(&self.spreads, &self.all[0].candidate.run.setting.machine, row.bytes);
                let exact = TimeInterval { low_us: time, high_us: time, low95_us: time, high95_us: time };
                (row, time, spread.map_or(exact, |spread| spread.around(time)))
            },
        )
    }

    /// The smallest and the largest size whose time by a finding is outside of the 80 % interval of the healthy time.
    pub fn telling_sizes(&self, finding: &Finding) -> Option<(u64, u64)> {
        let rows = self.expected().zip(&finding.times);
        let outside = rows.filter(|((.., around), time)| !(around.low_us..=around.high_us).contains(time));
        let sizes: Vec<u64> = outside.map(|((row, ..), _)| row.bytes).collect();
        Some((*sizes.iter().min()?, *sizes.iter().max()?))
    }

    /// The call whose times by two findings differ most, with both in microseconds; `None` if no call's times differ by more than the
    /// 80 % interval.
    pub fn telling_call(&self, one: &Finding, other: &Finding) -> Option<(Collective, u64, [f64; 2])> {
        let [one, other] = [one, other].map(|finding| &self.all[finding.candidate].candidate);
        let machine = &one.run.setting.machine;
        let calls =
            CALLS.into_iter().flat_map(|collective| (10..34).map(move |log| (collective, 1u64 << log)));
        let timed = calls.filter_map(|(collective, bytes)| {
            let time = |of: &Candidate| of.time_of(collective, bytes, &self.parameters);
            let times = [time(one)?, time(other)?];
            let within = spread_of(&self.spreads, machine, bytes).map_or(1.0, |spread| spread.within80);
            let clear = (times[0] / times[1]).ln().abs() - within.ln();
            (clear > 0.0).then_some((clear, (collective, bytes, times)))
        });
        timed.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, call)| call)
    }

    /// The causes for these times in microseconds, one for each row, most likely first.
    pub fn causes(&self, measured_us: &[f64], evidence: &Evidence) -> Vec<Finding> {
        let logs: Vec<f64> = self.all.iter().map(|judged| judged.log_likelihood(measured_us)).collect();
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut found: Vec<Finding> = Vec::new();
        for cause in [SlowCause::Healthy, SlowCause::Other].into_iter().chain(SlowCause::ALL) {
            let of_cause = (0..self.all.len()).filter(|&at| self.all[at].candidate.cause == cause);
            let Some(best) = of_cause.clone().max_by(|a, b| logs[*a].total_cmp(&logs[*b])) else { continue };
            let degrees = of_cause.clone().count() as f64;
            let mean = of_cause.map(|at| (logs[at] - most).exp()).sum::<f64>() / degrees;
            let prior = if cause == SlowCause::Healthy { HEALTHY } else { (1.0 - HEALTHY) / CAUSES };
            found.push(Finding {
                cause,
                title: self.all[best].candidate.title(),
                candidate: best,
                probability: prior * mean * evidence.weight(cause),
                times: self.all[best].times.clone(),
            });
        }
        let sum: f64 = found.iter().map(|finding| finding.probability).sum();
        found.iter_mut().for_each(|finding| finding.probability /= sum.max(f64::MIN_POSITIVE));
        found.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        found
    }
}

impl Judged {
    /// The logarithm of Student's t at the residuals, less what all candidates share.
    fn log_likelihood(&self, measured_us: &[f64]) -> f64 {
        let residuals: Vec<f64> =
            measured_us.iter().zip(&self.times).map(|(measured, time)| (measured / time).ln()).collect();
        let square: f64 = self.lower.forward(&residuals).iter().map(|x| x * x).sum();
        -0.5 * self.log_det - 0.5 * (FREEDOM + residuals.len() as f64) * (1.0 + square / FREEDOM).ln()
    }
}

/// The greatest difference between two lists of times, in logarithms.
pub(super) fn largest_change(times: &[f64], others: &[f64]) -> f64 {
    times.iter().zip(others).map(|(a, b)| (a / b).ln().abs()).fold(0.0, f64::max)
}

/// The standard deviation of every parameter's logarithm between systems, by the intervals of the file.
pub(super) fn std_devs(file: &ParameterFile) -> Vec<f64> {
    let mut found = vec![0.0; COUNT];
    for (number, known) in allfold_nccl_model::physics::PARAMETERS.iter().enumerate() {
        let entry = file.parameter.iter().find(|entry| entry.name == known.name);
        let fitted = entry.filter(|entry| entry.low > 0.0).map(|entry| (entry.high / entry.low).ln() / WIDTH);
        found[number] = fitted.unwrap_or(known.std_dev);
    }
    found
}

fn covariance(
    candidate: &Candidate,
    times: &[f64],
    parameters: &Parameters,
    std_devs: &[f64],
) -> NormalMatrix {
    let rows = times.len();
    let mut matrix = NormalMatrix::zero(rows);
    let doublings: Vec<f64> = candidate.run.rows.iter().map(|row| (row.bytes.max(1) as f64).log2()).collect();
    // What no cause explains is far off, and by another factor at other sizes.
    let [of_run, of_sizes] = if candidate.cause == SlowCause::Other { FAR } else { [OF_RUN, OF_SIZES] };
    for i in 0..rows {
        for j in 0..rows {
            let apart = (doublings[i] - doublings[j]) / NEAR;
            let near = of_sizes * of_sizes * (-0.5 * apart * apart).exp();
            *matrix.at_mut(i, j) = of_run * of_run + near + if i == j { OF_ROW * OF_ROW } else { 0.0 };
        }
    }
    for (number, std_dev) in std_devs.iter().enumerate() {
        let mut changed = parameters.clone();
        changed.set(number, parameters.at(number) * STEP.exp());
        let slopes: Vec<f64> =
            candidate.times(&changed).iter().zip(times).map(|(a, b)| (a / b).ln() / STEP * std_dev).collect();
        if slopes.iter().all(|slope| slope.abs() < 1e-6) {
            continue;
        }
        for i in 0..rows {
            for j in 0..rows {
                *matrix.at_mut(i, j) += slopes[i] * slopes[j];
            }
        }
    }
    matrix
}
