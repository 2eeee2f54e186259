//! Layouts of a large model's training, ranked by their predicted time.

use super::part::{Part, commands, head};
use crate::format;
use crate::page::{Plot, ReportTable, Section};
use crate::plots::{Axis, Curves, DrawError, Origin, Point, Series};
use crate::records::{PlannedLayout, PlannedRun, Records};

/// Groups of parts of a step, as the plot shows them.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "computation",
        &["products", "attention", "elements", "casts", "launches", "head", "optimizer", "fixed"],
    ),
    ("recomputation", &["recomputation"]),
    ("exposed exchange", &["tensor", "context", "experts", "sharding", "messages", "data"]),
    ("idle in the pipeline", &["bubble", "uneven"]),
];

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let stamped = records.stamped::<PlannedLayout>();
    let Some((first, _)) = stamped.first() else { return Ok(None) };
    let commands = commands(stamped.iter().map(|(_, stamp)| stamp));
    let layouts: Vec<&PlannedLayout> = stamped.iter().map(|(layout, _)| layout).collect();
    let answer = format!(
        "{} on {} {} is predicted to train {} tokens/s ({:.0} % of the peak) by {}",
        first.model,
        first.gpus,
        first.gpu,
        format::grouped(first.tokens_per_s.round()),
        100.0 * first.mfu,
        first.layout
    );
    let mut text = vec![format!(
        "Predicted from the specification. Bars are 80 % intervals; the errors of layouts of one job are alike, so that their order is surer than their times. {answer}."
    )];
    text.extend(records.all::<PlannedRun>().iter().map(said));
    let section = Section {
        id: "planned",
        title: format!("Layouts of {} on {} {}", first.model, first.gpus, first.gpu),
        text,
        plots: vec![speeds(&layouts)?, times(&layouts)?],
        tables: vec![table(&layouts)],
        commands,
        ..Section::default()
    };
    Ok(Some(Part { answer: Some(answer), facts: Vec::new(), limits: Vec::new(), section }))
}

/// What a run was planned as, in words.
fn said(run: &PlannedRun) -> String {
    let left_out: Vec<String> = run.left_out.iter().map(|(why, count)| format!("{count} {why}")).collect();
    let mut text =
        format!("{} of {} layouts fit; left out: {}.", run.fitting, run.tried, left_out.join(", "));
    for (change, speedup, layout) in &run.changes {
        text += &format!(" With {change}: {:+.1} % by {layout}.", 100.0 * (speedup - 1.0));
    }
    let [days, low, high] = run.days;
    if days > 0.0 {
        text += &format!(
            " {:.3e} tokens take {days:.1} days (80 %: {low:.1} to {high:.1}), of which {:.1} % train.",
            run.tokens,
            100.0 * run.goodput[0]
        );
    }
    text
}

const PLACE: Axis = Axis { label: "place of the layout", log: None, format: format::number };

fn speeds(layouts: &[&PlannedLayout]) -> Result<Plot, DrawError> {
    let caption = "Predicted speed of the fastest layouts";
    let points = layouts.iter().map(|layout| {
        let ends = layout.tokens_per_s * (layout.step_s / layout.low_s - layout.step_s / layout.high_s);
        Point { x: f64::from(layout.place), y: layout.tokens_per_s, error: ends / 2.0 }
    });
    let series =
        vec![Series { name: "predicted".into(), origin: Origin::Simulated, points: points.collect() }];
    let y = Axis { label: "tokens/s", log: None, format: format::number };
    let curves = Curves { label: caption.into(), x: PLACE, y, series, ideal: None };
    let finding = layouts.first().zip(layouts.last()).map(|(first, last)| {
        let slower = 100.0 * (1.0 - last.tokens_per_s / first.tokens_per_s);
        format!("the last layout shown is {slower:.0} % slower than the first")
    });
    Ok(Plot::new(caption, finding, curves.draw()?))
}

fn times(layouts: &[&PlannedLayout]) -> Result<Plot, DrawError> {
    let caption = "Predicted parts of a step";
    let series = GROUPS.iter().map(|(name, parts)| Series {
        name: (*name).into(),
        origin: Origin::Simulated,
        points: layouts
            .iter()
            .map(|layout| Point { x: f64::from(layout.place), y: sum(layout, parts), error: 0.0 })
            .collect(),
    });
    let y = Axis { label: "seconds of a step", log: None, format: format::number };
    let curves = Curves { label: caption.into(), x: PLACE, y, series: series.collect(), ideal: None };
    Ok(Plot::new(caption, None, curves.draw()?))
}

/// The seconds of some parts of a step.
fn sum(layout: &PlannedLayout, parts: &[&str]) -> f64 {
    layout.parts.iter().filter(|(name, _)| parts.contains(&&**name)).map(|(_, seconds)| seconds).sum()
}

fn table(layouts: &[&PlannedLayout]) -> ReportTable {
    let rows = layouts.iter().map(|layout| {
        let memory: Vec<String> =
            layout.memory.iter().map(|(class, gb)| format!("{class} {gb:.1}")).collect();
        let mut row = vec![
            layout.place.to_string(),
            layout.layout.clone(),
            format!("{:.3}", layout.step_s),
            format!("{:.3} to {:.3}", layout.low_s, layout.high_s),
            format::grouped(layout.tokens_per_s.round()),
            format!("{:.1}", 100.0 * layout.mfu),
            format!("{:.1}", layout.memory_gb),
        ];
        row.extend(
            GROUPS.iter().map(|(_, parts)| format!("{:.1}", 100.0 * sum(layout, parts) / layout.step_s)),
        );
        row.push(memory.join(", "));
        row
    });
    let names = ["place", "layout", "step (s)", "80 % interval (s)", "tokens/s", "MFU (%)", "memory (GB)"];
    let mut names = head(&names);
    names.extend(GROUPS.iter().map(|(name, _)| format!("{name} (%)")));
    names.push("memory by class (GB)".into());
    ReportTable { caption: "Predicted layouts".into(), head: names, rows: rows.collect(), collapsed: false }
}
