//! Confidence intervals by drawing systems: how far the parameters would move if other clusters had been measured.
//!
//! ```text
//! n systems --draw n, with replacement--> fit --> parameters        again and again; the middle 95 % of each parameter
//! ```
//!
//! Systems are drawn and not rows, because the errors of one cluster's rows are correlated. The same runs give the same intervals.

use crate::fit::{Fit, Prior, fit_weighed};
use crate::prepare::Prepared;
use allfold_nccl_model::physics::{COUNT, Terms};
use allfold_sim::hash::SplitMix;

/// With fewer systems than this nothing is drawn: too few different draws are possible.
const FEW: usize = 5;

/// Lower and upper end of every parameter's 95 % interval. Each end is the one farther from the fitted value, of the end by `times` draws
/// and the end by the fit's own standard deviation. A parameter on which no run depends keeps the width of its prior. `drawn_once` is
/// called after each draw.
pub fn intervals(
    runs: &[Prepared],
    prior: &Prior,
    terms: Terms,
    found: &Fit,
    times: u32,
    drawn_once: impl Fn(),
) -> Vec<(f64, f64)> {
    let mut draws: Vec<Vec<f64>> = vec![Vec::new(); COUNT];
    let systems = &found.systems;
    let times = if systems.len() < FEW { 0 } else { times };
    let mut random = SplitMix(0x616c_6c66_6f6c_6421);
    for _ in 0..times {
        let mut drawn = vec![0.0; systems.len()];
        (0..systems.len()).for_each(|_| drawn[(random.word() % systems.len() as u64) as usize] += 1.0);
        let weight = |run: &Prepared| {
            systems.iter().position(|system| *system == run.system).map_or(0.0, |place| drawn[place])
        };
        let weighed: Vec<(&Prepared, f64)> =
            runs.iter().map(|run| (run, weight(run))).filter(|(_, weight)| *weight > 0.0).collect();
        let one = fit_weighed(&weighed, prior, terms);
        (0..COUNT).for_each(|number| draws[number].push(one.parameters.at(number)));
        drawn_once();
    }
    let mut ends = Vec::with_capacity(COUNT);
    for (number, drawn) in draws.iter_mut().enumerate() {
        let (value, width) = (found.parameters.at(number), (1.96 * found.std_dev[number]).exp());
        drawn.sort_by(f64::total_cmp);
        let at = |share: f64| drawn.get((share * drawn.len() as f64) as usize).or(drawn.last()).copied();
        let low = at(0.025).map_or(value, |low| low.min(value)).min(value / width);
        let high = at(0.975).map_or(value, |high| high.max(value)).max(value * width);
        ends.push((low, high));
    }
    ends
}
