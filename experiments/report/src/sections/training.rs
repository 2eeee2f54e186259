//! One network, trained on several numbers of ranks, on threads and on the simulator: the same bits.

use super::names;
use super::part::{Part, commands, distinct, fact};
use crate::format;
use crate::loss_curve::{self, LossSeries};
use crate::page::{Headline, Plot, Question, ReportTable, Section};
use crate::plots::{Better, Curves, DrawError, Origin, Point};
use crate::records::{MeasuredStep, Parity, Records, SimulatedStep, Stamp, TrainingStep};

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let parities = records.stamped::<Parity>();
    let measured = records.stamped::<MeasuredStep>();
    let simulated = records.stamped::<SimulatedStep>();
    if measured.is_empty() && simulated.is_empty() {
        return Ok(None);
    }
    let mut facts: Vec<_> = same_bits(parities.iter().map(|(parity, _)| parity)).into_iter().collect();
    let ends = measured.iter().filter_map(|(step, _)| Some((step, step.end.as_ref()?)));
    let best = ends.max_by(|a, b| a.1.samples_per_s.total_cmp(&b.1.samples_per_s));
    let learnt = best.map(|(step, end)| {
        format!(
            "a {} trained on {} {} at {} samples/s and classified {} of the test set right after {} steps",
            names::network(&step.setup.model),
            format::counted(step.setup.ranks as usize, "rank"),
            if step.setup.device == "cpu" { "of this machine" } else { &step.setup.device },
            format::number(end.samples_per_s),
            format::percent(end.accuracy),
            step.step + 1
        )
    });
    facts.extend(best.map(|(step, end)| {
        let text = format!(
            "training the {} on {}, measured; {} of the test set are classified right after {} steps",
            names::network(&step.setup.model),
            format::counted(step.setup.ranks as usize, "rank"),
            format::percent(end.accuracy),
            step.step + 1
        );
        fact(Question::Here, format!("{} samples/s", format::number(end.samples_per_s)), text, None)
    }));
    let stamps = measured.iter().map(|m| &m.1).chain(simulated.iter().map(|s| &s.1));
    let commands = commands(stamps);
    let mut tables = Vec::new();
    if !parities.is_empty() {
        tables.push(parity_table(&parities));
    }
    if !measured.is_empty() {
        tables.push(end_table("Measured on this machine; per step, without those that warm up", &measured));
    }
    if !simulated.is_empty() {
        tables.push(end_table("Simulated, real arithmetic on a virtual clock; per step", &simulated));
    }
    let section = Section {
        id: "training",
        title: "Training".into(),
        text: vec![
            "Data-parallel training: every rank computes gradients of its share of the batch, buckets of gradients are \
             all-reduced while the rest of the backward pass runs. With a canonical algorithm the losses and weights \
             depend on the configuration, the seed and the number of ranks, and on nothing else."
                .into(),
        ],
        plots: losses(records)?,
        tables,
        commands,
        ..Section::default()
    };
    Ok(Some(Part { answer: learnt, facts, limits: Vec::new(), section }))
}

/// Whether the threads and the simulator computed the same bits.
fn same_bits<'a>(parities: impl Iterator<Item = &'a Parity> + Clone) -> Option<(Question, Headline)> {
    let last = parities.clone().last()?;
    let mut ranks: Vec<String> = parities.clone().map(|parity| parity.ranks.to_string()).collect();
    if let Some(ranks) = ranks.last_mut() {
        *ranks = format::counted(last.ranks as usize, "rank");
    }
    let ok = parities.clone().all(|parity| parity.ok);
    let text = format!(
        "losses and final weights of the {} on threads and on the simulator, on {}",
        names::network(&last.model),
        ranks.join(", ")
    );
    Some(fact(Question::Trust, if ok { "Same bits" } else { "Bits differ" }.into(), text, Some(ok)))
}

/// The losses of the measured runs: a plot for each model, a curve for each kind of run on each number of ranks.
fn losses(records: &Records) -> Result<Vec<Plot>, DrawError> {
    let mut steps = records.all::<MeasuredStep>();
    steps.retain(|step| step.loss.is_finite());
    let plot = |model: String| {
        let of: Vec<&MeasuredStep> = steps.iter().filter(|step| step.setup.model == model).collect();
        let one_kind = distinct(of.iter().map(|step| step.setup.kind())).len() == 1;
        let key = |step: &MeasuredStep| (step.setup.kind().map(String::from), step.setup.ranks);
        let courses = distinct(of.iter().map(|step| key(step))).into_iter().map(|kind| {
            let of: Vec<&&MeasuredStep> = of.iter().filter(|step| key(step) == kind).collect();
            let ([backend, device, _, strategy], ranks) = &kind;
            let ranks = format::counted(*ranks as usize, "rank");
            LossSeries {
                name: if one_kind { ranks } else { format!("{ranks}, {strategy}, {backend} on {device}") },
                origin: Origin::measured_on(device),
                samples_per_step: of.iter().find_map(|step| {
                    let end = step.end.as_ref()?;
                    Some((end.samples_per_s * end.time_us / 1e6).round()).filter(|samples| *samples >= 1.0)
                }),
                steps: of.iter().map(|step| (step.step as f64, step.loss)).collect(),
            }
        });
        let curves = loss_curve::curves(&names::network(&model), courses.collect());
        let caption = format!(
            "Training loss of the {}, measured, averaged over neighbouring steps",
            names::network(&model)
        );
        let plot = Plot::new(caption, lowest(&curves), curves.draw()?);
        Ok(plot.among(vec![("network", names::network(&model))]))
    };
    distinct(steps.iter().map(|step| step.setup.model.clone())).into_iter().map(plot).collect()
}

/// The finding of the losses: of several curves, where the lowest and the highest end; of a single curve, its [`Curves::finding`].
fn lowest(curves: &Curves) -> Option<String> {
    if curves.series.len() < 2 {
        return curves.finding(Better::Lower);
    }
    let ends = || curves.series.iter().filter_map(|series| Some((&series.name, series.points.last()?)));
    let low = ends().min_by(|a, b| a.1.y.total_cmp(&b.1.y))?;
    let high = ends().max_by(|a, b| a.1.y.total_cmp(&b.1.y))?;
    let said = |(name, point): (&String, &Point)| {
        format!(
            "{name} at a loss of {} after {} {}",
            format::number(point.y),
            format::number(point.x),
            curves.x.label
        )
    };
    Some(format!("the lowest end: {}; the highest end: {}", said(low), said(high)))
}

fn parity_table(parities: &[(Parity, Stamp)]) -> ReportTable {
    ReportTable::new(
        "Hashes of all losses and of the final weights",
        parities.iter().map(|(parity, _)| parity),
        &[
            ("ranks", |p| p.ranks.to_string()),
            ("steps", |p| p.step.to_string()),
            ("losses, threads", |p| format::short(&p.threads_losses)),
            ("losses, sim", |p| format::short(&p.sim_losses)),
            ("weights, threads", |p| format::short(&p.threads_weights)),
            ("weights, sim", |p| format::short(&p.sim_weights)),
            ("verdict", |p| if p.ok { "same bits" } else { "DIFFERENT" }.into()),
        ],
    )
}

fn end_table<const MEASURED: bool>(caption: &str, steps: &[(TrainingStep<MEASURED>, Stamp)]) -> ReportTable {
    let ends = steps.iter().filter_map(|(step, _)| Some((step, step.end.as_ref()?)));
    ReportTable::new(
        caption,
        ends,
        &[
            ("network", |(step, _)| names::network(&step.setup.model)),
            ("ranks", |(step, _)| step.setup.ranks.to_string()),
            ("strategy", |(step, _)| step.setup.strategy.clone()),
            ("samples/s", |(_, end)| format::rate(end.samples_per_s)),
            ("accuracy", |(_, end)| format::percent(end.accuracy)),
            ("last loss", |(step, _)| format!("{:.6}", step.loss)),
            ("steps", |(step, _)| (step.step + 1).to_string()),
            ("backend", |(step, _)| step.setup.backend.clone()),
            ("device", |(step, _)| names::device(&step.setup.device)),
            ("step", |(_, end)| format::time(end.time_us)),
            ("forward", |(_, end)| format::time(end.breakdown.forward_us)),
            ("backward", |(_, end)| format::time(end.breakdown.backward_us)),
            ("exposed", |(_, end)| format::time(end.breakdown.exposed_us)),
            ("optimiser", |(_, end)| format::time(end.breakdown.optimiser_us)),
        ],
    )
}
