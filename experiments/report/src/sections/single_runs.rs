//! Scaling curves from single training runs of one network on one kind of device by one strategy, with other numbers of ranks.
//!
//! | runs with equal | curve |
//! |---|---|
//! | samples of a rank in a step | weak scaling |
//! | samples of all ranks in a step | strong scaling |

use super::part::distinct;
use crate::records::{MeasuredScale, MeasuredStep, Records};

/// What runs of one curve have in common: the network, the device, the strategy and the samples of a step.
type Key = (String, String, String, u64);

/// The curves, each by rising ranks. Of several runs of one point the last counts; a run of one rank belongs to every strategy's curve.
pub fn curves(records: &Records) -> Vec<Vec<MeasuredScale>> {
    let points: Vec<MeasuredScale> = records.all::<MeasuredStep>().iter().filter_map(point).collect();
    let weak = |point: &MeasuredScale| point.batch;
    let strong = |point: &MeasuredScale| point.batch * u64::from(point.setup.ranks);
    [of(&points, weak), of(&points, strong)].concat()
}

/// The curves of points with the same number of samples, as `samples` counts them.
fn of(points: &[MeasuredScale], samples: impl Fn(&MeasuredScale) -> u64) -> Vec<Vec<MeasuredScale>> {
    let key = |point: &MeasuredScale| -> Key {
        let setup = &point.setup;
        (setup.model.clone(), setup.device.clone(), setup.strategy.clone(), samples(point))
    };
    let keys = distinct(points.iter().filter(|point| point.setup.ranks > 1).map(key));
    let curves = keys.into_iter().map(|of| {
        let fits = |point: &&MeasuredScale| {
            let (model, device, strategy, samples) = key(point);
            let strategy = if point.setup.ranks == 1 { of.2.clone() } else { strategy };
            (model, device, strategy, samples) == of
        };
        let mut curve: Vec<MeasuredScale> = points.iter().rev().filter(fits).cloned().collect();
        curve.sort_by_key(|point| point.setup.ranks);
        curve.dedup_by_key(|point| point.setup.ranks);
        // A run of one rank is a thread, where several are processes.
        if let Some(last) = curve.last().map(|point| point.setup.clone()) {
            for point in &mut curve {
                (point.setup.backend, point.setup.strategy) = (last.backend.clone(), last.strategy.clone());
            }
        }
        MeasuredScale::set_efficiency(&mut curve);
        curve
    });
    curves.filter(|curve| curve.len() > 1).collect()
}

/// The point of a run that has ended.
fn point(step: &MeasuredStep) -> Option<MeasuredScale> {
    let end = step.end.as_ref()?;
    Some(MeasuredScale {
        setup: step.setup.clone(),
        batch: end.batch?,
        topology: "this machine".into(),
        time_us: end.time_us,
        exposed_us: end.breakdown.exposed_us,
        exchange: end.exchange.clone(),
        samples_per_s: end.samples_per_s,
        efficiency: f64::NAN,
        memory: end.memory,
        ..MeasuredScale::default()
    })
}

#[cfg(test)]
mod tests;
