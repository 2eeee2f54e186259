//! The plots of training's scaling curves: efficiency and throughput over ranks, one plot for each network on each machine.
//!
//! Measurements on this machine's cores and predictions for them by the model of a CPU core share a plot; no plot mixes this
//! machine with a simulated cluster.

use super::names;
use super::part::distinct;
use crate::format;
use crate::page::Plot;
use crate::plots::{Axis, Better, Curves, DrawError, Ideal, Origin, Point, Series};
use crate::records::{MeasuredScale, Setup, SimulatedScale};

/// The device model that predicts this machine's cores.
const CORE: &str = "cpu_core";
/// The name of this machine in a plot of measurements on it and of predictions for it.
const HERE: &str = "this machine";
/// A finding gives the largest number of ranks up to which the efficiency is at least this.
const GOOD: f64 = 0.9;

/// One point of a curve.
struct Of<'a> {
    setup: &'a Setup,
    batch: u64,
    place: String,
    origin: Origin,
    samples_per_s: f64,
    /// No number where the point does not fit in memory.
    efficiency: f64,
    relative_error: f64,
    fits: bool,
}

fn points<'a>(measured: &[&'a MeasuredScale], simulated: &[&'a SimulatedScale]) -> Vec<Of<'a>> {
    let measured = measured.iter().map(|m| Of {
        setup: &m.setup,
        batch: m.batch,
        place: if m.setup.device == "cpu" { HERE.into() } else { format!("{HERE}, {}", m.setup.device) },
        origin: Origin::measured_on(&m.setup.device),
        samples_per_s: m.samples_per_s,
        efficiency: m.efficiency,
        relative_error: m.time_error_us / m.time_us.max(1e-9),
        fits: true,
    });
    let simulated = simulated.iter().map(|s| Of {
        setup: &s.setup,
        batch: s.batch,
        place: if s.setup.device == CORE { HERE.into() } else { names::machine(&s.topology) },
        origin: Origin::Simulated,
        samples_per_s: s.samples_per_s,
        efficiency: if s.excess().is_none() { s.efficiency } else { f64::NAN },
        relative_error: 0.0,
        fits: s.excess().is_none(),
    });
    measured.chain(simulated).collect()
}

/// Two plots for each network on each machine.
pub fn plots(measured: &[&MeasuredScale], simulated: &[&SimulatedScale]) -> Result<Vec<Plot>, DrawError> {
    let points = points(measured, simulated);
    let mut groups = distinct(points.iter().map(|point| (point.setup.model.clone(), point.place.clone())));
    groups.sort_by_key(|(model, _)| !names::is_known(model));
    let mut plots = Vec::new();
    for (model, place) in groups {
        let of: Vec<&Of<'_>> =
            points.iter().filter(|point| point.setup.model == model && point.place == place).collect();
        let (what, most) = (format!("{} on {place}", names::network(&model)), most(&of));
        let efficiency = Curves {
            label: format!("Efficiency of training {what} over ranks"),
            x: Axis { label: "ranks", log: Some(2), format: format::number },
            y: Axis { label: "efficiency", log: None, format: format::percent_axis },
            series: series(&of, |point| point.efficiency),
            ideal: Some(Ideal { name: "ideal".into(), points: vec![(1.0, 1.0), (f64::from(most), 1.0)] }),
        };
        let throughput = Curves {
            label: format!("Samples per second of training {what} over ranks"),
            y: Axis { label: "samples/s", log: Some(10), format: format::number },
            series: series(&of, |point| point.samples_per_s),
            ideal: None,
            ..efficiency.clone()
        };
        let origin = if place == HERE { "measured and modeled" } else { "simulated" };
        let origin = if place.starts_with(HERE) && place != HERE { "measured" } else { origin };
        let kind = if is_strong(&of) { "strong" } else { "weak" };
        let choices = |shows: &str| vec![("training", what.clone()), ("shows", shows.to_string())];
        let unfit = of.iter().filter(|point| !point.fits).map(|point| point.setup.ranks);
        let unfit = distinct(unfit);
        let unfit =
            (!unfit.is_empty()).then(|| format!("does not fit in memory: {}", format::counted_list(unfit)));
        let faster = modeled_too_fast(&of).or_else(|| throughput.finding(Better::Higher));
        for (curves, finding, name) in
            [(&efficiency, good_up_to(&efficiency), "efficiency"), (&throughput, faster, "throughput")]
        {
            if curves.series.is_empty() {
                continue;
            }
            let said: Vec<String> = unfit.iter().cloned().chain(finding).collect();
            let finding = (!said.is_empty()).then(|| said.join("; "));
            let caption = format!("{} of {what}, {kind} scaling, {origin}", capital(name));
            plots.push(Plot::new(caption, finding, curves.draw()?).among(choices(name)));
        }
    }
    Ok(plots)
}

/// Whether a rank has other samples in a step on each number of ranks, as where the ranks divide the samples of a step.
fn is_strong(points: &[&Of<'_>]) -> bool {
    let count = |key: fn(&Of<'_>) -> (u32, u64)| distinct(points.iter().map(|point| key(point))).len();
    let ranks = count(|point| (point.setup.ranks, 0));
    ranks == count(|point| (point.setup.ranks, point.batch)) && count(|point| (0, point.batch)) > 1
}

fn most(points: &[&Of<'_>]) -> u32 {
    points.iter().map(|point| point.setup.ranks).max().unwrap_or(1)
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// A curve for each strategy, backend and device, of the points that have a value; points that do not fit in memory are apart.
fn series(points: &[&Of<'_>], value: impl Fn(&Of<'_>) -> f64) -> Vec<Series> {
    let key = |point: &Of<'_>| {
        let Setup { strategy, backend, device, .. } = point.setup;
        (strategy.clone(), backend.clone(), device.clone(), point.fits)
    };
    let points: Vec<&&Of<'_>> = points.iter().filter(|point| value(point).is_finite()).collect();
    let kinds = distinct(points.iter().map(|point| key(point)));
    let series = kinds.into_iter().map(|kind| {
        let of: Vec<&&Of<'_>> = points.iter().copied().filter(|point| key(point) == kind).collect();
        let origin = of.first().map_or(Origin::Simulated, |point| point.origin);
        let (strategy, backend, device, fits) = &kind;
        let mark = if *fits { "" } else { ", DOES NOT FIT in memory" };
        Series {
            name: format!("{strategy}, {backend} on {}{mark}", names::device(device)),
            origin,
            points: of
                .iter()
                .map(|point| {
                    let y = value(point);
                    Point { x: f64::from(point.setup.ranks), y, error: y * point.relative_error }
                })
                .collect(),
        }
    });
    series.collect()
}

fn ranks(count: f64) -> String {
    format::counted(count as usize, "rank")
}

/// Up to how many ranks the efficiency is good, and what it is at the end, for each curve.
fn good_up_to(curves: &Curves) -> Option<String> {
    let said = curves.series.iter().filter_map(|series| {
        let last = series.points.last().filter(|_| series.points.len() > 1)?;
        let bad = series.points.iter().find(|point| point.y < GOOD);
        let good = series.points.iter().take_while(|point| point.y >= GOOD).last();
        let upto = match (bad, good) {
            (None, _) => format!("at least {} at every point", format::percent_axis(GOOD)),
            (Some(bad), None) => format!("below {} from {} on", format::percent_axis(GOOD), ranks(bad.x)),
            (Some(_), Some(good)) => {
                format!("at least {} up to {}", format::percent_axis(GOOD), ranks(good.x))
            }
        };
        Some(format!("{}: {upto}, {} at {}", series.name, format::percent(last.y), ranks(last.x)))
    });
    let said: Vec<String> = said.collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// The factor between the rate by the model of a CPU core and the measured rate, at the most ranks that were both measured and modeled.
fn modeled_too_fast(points: &[&Of<'_>]) -> Option<String> {
    let measured = points.iter().filter(|point| point.origin == Origin::Cpu);
    let pairs = measured.filter_map(|m| {
        let core = |s: &&&Of<'_>| s.setup.device == CORE && s.setup.ranks == m.setup.ranks;
        Some((m.setup.ranks, points.iter().find(core)?.samples_per_s / m.samples_per_s))
    });
    let (count, factor) = pairs.max_by_key(|pair| pair.0).filter(|(_, factor)| *factor > 0.0)?;
    let (factor, than) = if factor >= 1.0 { (factor, "more") } else { (1.0 / factor, "less") };
    Some(format!(
        "the data sheet's model of a CPU core predicts {} times {than} than was measured on {}",
        format::number(factor),
        format::counted(count as usize, "rank")
    ))
}

/// Each measured rate of training on this machine's cores with the rate by the model of a core, and the network.
pub fn pairs(measured: &[&MeasuredScale], simulated: &[&SimulatedScale]) -> Vec<(String, f64, f64)> {
    let here = measured.iter().filter(|m| m.setup.device == "cpu");
    let pairs = here.filter_map(|m| {
        let same = |s: &&&SimulatedScale| {
            s.setup.device == CORE && s.setup.model == m.setup.model && s.setup.ranks == m.setup.ranks
        };
        let modeled = simulated.iter().find(same)?.samples_per_s;
        Some((names::network(&m.setup.model), m.samples_per_s, modeled))
    });
    pairs.filter(|(_, measured, modeled)| *measured > 0.0 && *modeled > 0.0).collect()
}

/// The greatest factor between a measured and the modeled rate of training on this machine's cores.
pub fn model_of_this_machine(pairs: &[(String, f64, f64)]) -> Option<f64> {
    pairs.iter().map(|(_, measured, modeled)| (measured / modeled).max(modeled / measured)).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::ScalePoint;

    fn setup(backend: &str, device: &str, strategy: &str, ranks: u32) -> Setup {
        Setup {
            backend: backend.into(),
            device: device.into(),
            model: "cnn".into(),
            strategy: strategy.into(),
            ranks,
            mesh: Setup::data_parallel(ranks),
        }
    }

    fn point<const MEASURED: bool>(
        setup: Setup,
        topology: &str,
        rate: f64,
        efficiency: f64,
    ) -> ScalePoint<MEASURED> {
        let topology = topology.into();
        ScalePoint {
            setup,
            batch: 8,
            topology,
            time_us: 1.0,
            samples_per_s: rate,
            efficiency,
            ..ScalePoint::default()
        }
    }

    #[test]
    fn this_machine_a_gpu_and_a_cluster_have_plots_of_their_own() {
        let measured = [("cpu", "ddp"), ("cpu", "zero1"), ("H100", "ddp")].map(|(device, strategy)| {
            [1, 2].map(|n| point(setup("threads", device, strategy, n), HERE, 8.0 * f64::from(n), 1.0))
        });
        let core = [1, 2]
            .map(|n| point(setup("modeled", CORE, "ddp", n), "switch of cpu_core", 20.0 * f64::from(n), 1.0));
        let cluster = [1, 2, 64].map(|n| {
            let efficiency = if n == 64 { 0.5 } else { 0.95 };
            point(setup("modeled", "a100_f32", "ddp", n), "nodes8 of a100_f32", 99.0, efficiency)
        });
        let measured: Vec<&MeasuredScale> = measured.iter().flatten().collect();
        let simulated: Vec<&SimulatedScale> = core.iter().chain(&cluster).collect();
        let plots = plots(&measured, &simulated).unwrap();
        let (markers, captions): (Vec<Vec<&str>>, Vec<&str>) = plots
            .iter()
            .step_by(2)
            .map(|plot| (plot.figure.legend.iter().map(|key| key.marker).collect(), &*plot.caption))
            .unzip();
        assert_eq!(captions[1], "Efficiency of CNN on this machine, H100, weak scaling, measured");
        assert_eq!(markers[1..], [vec!["gpu", "ideal"], vec!["simulated", "ideal"]]);
        assert!(markers[0].contains(&"cpu") && markers[0].contains(&"simulated"), "{markers:?}");
        let finding = plots[4].finding.as_deref().unwrap();
        assert!(finding.ends_with("at least 90 % up to 2 ranks, 50.0 % at 64 ranks"), "{finding}");
        let finding = plots[1].finding.as_deref().unwrap();
        assert!(finding.contains("predicts 2.5 times more than was measured on 2 ranks"), "{finding}");
        assert_eq!(model_of_this_machine(&pairs(&measured, &simulated)), Some(2.5));
        assert_eq!(model_of_this_machine(&pairs(&measured, &[])), None);
    }
}
