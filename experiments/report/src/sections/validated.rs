//! Predictions beside measurements of the same calls and runs.

use super::part::{Part, commands, distinct, fact};
use super::{accuracy, scaling_curves};
use crate::format;
use crate::page::{Plot, Question, ReportTable, Section};
use crate::plots::{Axis, Curves, DrawError, Ideal, Origin, Point, Series};
use crate::records::{MeasuredScale, Records, ScalingRow, SimulatedScale, Validated};

/// The most series of a plot; the systems after them share the last one.
const SERIES: usize = 8;
/// The most rows of a table that is shown unfolded.
const ROWS: usize = 40;

/// A measured and a predicted value, and the name of their series.
type Pair = (String, f64, f64);

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let calls = records.stamped::<Validated>();
    let rates = records.stamped::<ScalingRow>();
    let (measured, modeled) = (records.all::<MeasuredScale>(), records.all::<SimulatedScale>());
    let here =
        scaling_curves::pairs(&measured.iter().collect::<Vec<_>>(), &modeled.iter().collect::<Vec<_>>());
    if calls.is_empty() && rates.is_empty() && here.is_empty() {
        return Ok(None);
    }
    let (mut plots, mut tables, mut facts) = (Vec::new(), Vec::new(), Vec::new());
    let stamps = calls.iter().map(|(_, stamp)| stamp).chain(rates.iter().map(|(_, stamp)| stamp));
    let commands = commands(stamps);
    let calls: Vec<Validated> = calls.into_iter().map(|(row, _)| row).collect();
    for predictor in distinct(calls.iter().map(|row| row.predictor.clone())) {
        let of: Vec<&Validated> = calls.iter().filter(|row| row.predictor == predictor).collect();
        let pairs = of.iter().map(|row| (row.system.clone(), row.measured_us, row.predicted_us)).collect();
        let caption = format!("Predicted beside measured time of collectives, by the predictor {predictor}");
        let plot = plot(caption, ["measured time (us)", "predicted time (us)"], pairs)?;
        let fitted = of.iter().filter(|row| row.fitted).count();
        let finding = plot.finding.clone().unwrap_or_default();
        if predictor == accuracy::QUOTED {
            let mut text = format!("{} predicted calls of these records: {finding}", of.len());
            if fitted > 0 {
                text += &format!("; {fitted} of them were fitted to, which is no test of the rest");
            }
            facts.push(fact(Question::Trust, typical(&finding), text, None));
        }
        plots.push(plot.among(vec![("predictor", predictor)]));
    }
    if !calls.is_empty() {
        tables.push(call_table(&calls));
    }
    let pairs: Vec<Pair> = rates
        .iter()
        .map(|(row, _)| (row.system.clone(), row.published_samples_per_s, row.predicted_samples_per_s))
        .collect();
    let axes = ["measured (samples/s)", "predicted (samples/s)"];
    for (caption, pairs) in [
        ("Predicted beside published rate of training", pairs),
        (
            "Predicted beside measured rate of training on this machine, by the data sheet's model of a CPU core",
            here,
        ),
    ] {
        if !pairs.is_empty() {
            plots.push(plot(caption.into(), axes, pairs)?);
        }
    }
    let section = Section {
        id: "validated",
        title: "Predicted beside measured".into(),
        text: vec!["A point on the line is predicted exactly. The factor of a point is max(predicted / measured, measured / predicted).".into()],
        plots,
        tables,
        commands,
        ..Section::default()
    };
    let answer = facts.first().map(|(_, fact)| fact.text.clone());
    Ok(Some(Part { answer, facts, limits: Vec::new(), section }))
}

/// The typical factor of a finding: its first figure.
fn typical(finding: &str) -> String {
    finding.split(' ').find(|word| word.starts_with('x')).unwrap_or_default().trim_end_matches(',').into()
}

fn plot(caption: String, [x, y]: [&'static str; 2], pairs: Vec<Pair>) -> Result<Plot, DrawError> {
    let mut factors: Vec<f64> =
        pairs.iter().map(|(_, m, p)| (m / p).max(p / m)).filter(|f| f.is_finite()).collect();
    factors.sort_by(f64::total_cmp);
    let quantile =
        |share: f64| factors.get(((factors.len().saturating_sub(1)) as f64 * share).round() as usize);
    let finding = quantile(0.5).zip(quantile(0.9)).map(|(median, most)| {
        format!("the typical factor (median) is x{median:.2}, nine in ten are within x{most:.2}")
    });
    let names = distinct(pairs.iter().map(|pair| pair.0.clone()));
    let place = |name: &String| names.iter().position(|known| known == name).unwrap_or(0).min(SERIES - 1);
    let series = names.iter().take(SERIES).enumerate().map(|(at, name)| Series {
        name: if names.len() > SERIES && at + 1 == SERIES {
            format!("{name} and others")
        } else {
            name.clone()
        },
        origin: Origin::Compared,
        points: pairs
            .iter()
            .filter(|pair| place(&pair.0) == at)
            .map(|&(_, x, y)| Point { x, y, error: 0.0 })
            .collect(),
    });
    // The line spans all values, so that both axes have the same range and the line is their diagonal.
    let both = || pairs.iter().flat_map(|pair| [pair.1, pair.2]).filter(|v| *v > 0.0 && v.is_finite());
    let (low, high) = (both().fold(f64::INFINITY, f64::min), both().fold(0.0, f64::max));
    let axis = |label| Axis { label, log: Some(10), format: format::number };
    let curves = Curves {
        label: caption.clone(),
        x: axis(x),
        y: axis(y),
        series: series.collect(),
        ideal: Some(Ideal { name: "exact".into(), points: vec![(low, low), (high, high)] }),
    };
    Ok(Plot::new(caption, finding, curves.draw()?))
}

fn call_table(calls: &[Validated]) -> ReportTable {
    ReportTable::new(
        "Each call, predicted beside measured",
        calls,
        &[
            ("run", |row| row.run.clone()),
            ("size", |row| format::bytes(row.bytes)),
            ("predictor", |row| row.predictor.clone()),
            ("measured (us)", |row| format::number(row.measured_us)),
            ("predicted (us)", |row| format::number(row.predicted_us)),
            ("factor", |row| format!("{:.2}", row.error_factor)),
            ("took part in the fit", |row| if row.fitted { "yes" } else { "no" }.into()),
            ("NCCL's choice", |row| row.nccl_choice.clone()),
            ("collective", |row| row.collective.clone()),
            ("ranks", |row| row.ranks.to_string()),
            ("nodes", |row| row.nodes.to_string()),
            ("system", |row| row.system.clone()),
        ],
    )
    .folded(calls.len() > ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_validate_are_shown_with_a_plot_a_table_and_the_typical_factor() {
        let row = |predictor: &str, bytes: u64, factor: f64, fitted: bool| {
            format!(
                r#"{{"schema":2,"kind":"validate","measured":false,"run":"mine","system":"lab","nodes":2,"collective":"all_reduce",
                "ranks":16,"bytes":{bytes},"nccl_choice":"Ring/LL","predictor":"{predictor}","measured_us":100.0,"predicted_us":{},
                "error_factor":{factor},"fitted":{fitted},"commit":"c","host":"h","command":"allfold validate mine.log"}}"#,
                100.0 * factor
            )
            .replace('\n', " ")
        };
        let lines = [
            row("physical", 8, 1.1, false),
            row("physical", 1024, 1.3, true),
            row("physical", 4096, 2.0, false),
            row("simulated", 8, 1.5, false),
        ];
        let part = part(&Records::parse(&lines.join("\n")).unwrap()).unwrap().unwrap();
        assert_eq!(part.facts[0].1.value, "x1.30");
        let said = part.answer.unwrap();
        assert!(said.starts_with("3 predicted calls") && said.contains("within x2.00"), "{said}");
        assert!(said.contains("1 of them were fitted to"), "{said}");
        assert_eq!(part.section.plots.len(), 2, "a plot for each predictor");
        assert_eq!(part.section.tables[0].rows.len(), 4);
        let svg = &part.section.plots[0].figure.wide;
        assert!(svg.contains("lab: 110 (predicted time (us)) at 100 (measured time (us))"), "{svg}");
        // Both axes go up to the predicted 200 us.
        assert_eq!(svg.matches("\n200\n").count(), 2, "{svg}");
    }
}
