//! How far predictions of collectives are off, on systems that took no part in the fit.

use super::part::{Part, commands, distinct, fact, head};
use crate::format;
use crate::page::{Headline, Question, ReportTable, Section};
use crate::plots::DrawError;
use crate::records::{Records, TrainingScore, ValidationScore};

/// The part's anchor.
pub const ID: &str = "accuracy";
/// The predictor whose error the page and README quote.
pub const QUOTED: &str = "physical";

pub fn part(records: &Records) -> Result<Option<Part>, DrawError> {
    let stamped = records.stamped::<ValidationScore>();
    if stamped.is_empty() {
        return Ok(None);
    }
    let commands = commands(stamped.iter().map(|(_, stamp)| stamp));
    let sources = distinct(stamped.iter().map(|(score, _)| score.source.clone())).join(", ");
    let scores: Vec<ValidationScore> = stamped.into_iter().map(|(score, _)| score).collect();
    let bands = distinct(scores.iter().map(|score| score.band.clone()));
    let predictors = distinct(scores.iter().map(|score| score.predictor.clone()));
    let rows = bands.iter().map(|band| {
        let of: Vec<&ValidationScore> = scores.iter().filter(|score| score.band == *band).collect();
        let (rows, systems) = of.first().map_or((0, 0), |score| (score.rows, score.systems));
        let mut cells = vec![band.clone(), rows.to_string(), systems.to_string()];
        cells.extend(predictors.iter().map(|predictor| {
            let score = of.iter().find(|score| score.predictor == *predictor);
            score.map_or(String::new(), |score| {
                format!("{:.2} / {:.2}", score.median_factor, score.ninetieth_factor)
            })
        }));
        cells
    });
    let mut names = head(&["size", "rows", "systems"]);
    names.extend(predictors.iter().cloned());
    let table = ReportTable {
        caption: "Factor by which a predicted time is wrong, by size of the call: median / 90th percentile"
            .into(),
        head: names,
        rows: rows.collect(),
        collapsed: false,
    };
    let (rows, systems) = quoted(&scores)
        .fold((0, 0), |(rows, systems), score| (rows + score.rows, systems.max(score.systems)));
    let nodes = scores.iter().map(|score| score.most_nodes).max().unwrap_or(0);
    let mut facts = Vec::new();
    if let Some((median, ninetieth)) = ranges(&scores) {
        facts.push(fact(
            Question::Trust,
            median,
            format!(
                "typical error factor of a predicted collective on a system that was left out of the fit; nine in ten within \
                 {ninetieth} ({rows} published measurements, up to {systems} systems for a band of sizes, up to {nodes} nodes)"
            ),
            None,
        ));
    }
    facts.extend(records.all::<TrainingScore>().iter().map(trained));
    let section = Section {
        id: ID,
        title: "Accuracy of predicted collectives".into(),
        text: vec![format!(
            "The first lines of this page and README quote the predictor `{QUOTED}`. Each published system of GPUs is predicted from a fit to all other systems, so that no prediction uses measurements \
             of the system that it is compared with. The factor is max(predicted / measured, measured / predicted): 1.00 is exact. \
             These scores come with the program ({sources}); they are not measured by this run. In the command, RUNS stands for the \
             files of the published runs, which are not part of Allfold."
        )],
        tables: vec![table],
        commands,
        ..Section::default()
    };
    let limits = vec![format!(
        "No published run with more than {nodes} nodes is in these scores: a prediction for more nodes is not tested by them."
    )];
    Ok(Some(Part { answer: None, facts, limits, section }))
}

/// The fact of a score of predicted training.
fn trained(score: &TrainingScore) -> (Question, Headline) {
    let text = format!(
        "typical error of predicted training rates of {} on {} GPUs, each from the rate of one; nine in ten within {} ({} published \
         rates)",
        score.networks,
        score.ranks,
        format::percent(score.ninetieth_error),
        score.rows
    );
    fact(Question::Trust, format::percent(score.median_error), text, None)
}

/// The typical error of predicted training in words, for a first line about training; `None` without scores.
pub fn training_error(records: &Records) -> Option<String> {
    let scores = records.all::<TrainingScore>();
    scores.first().map(|score| {
        format!(
            "published rates of {} on {} GPUs are predicted with a typical error of {}, nine in ten within {}",
            score.networks,
            score.ranks,
            format::percent(score.median_error),
            format::percent(score.ninetieth_error)
        )
    })
}

/// The typical error of predicted collectives in words, for any other first line; `None` without scores.
pub fn typical_error(records: &Records) -> Option<String> {
    let (median, ninetieth) = ranges(&records.all::<ValidationScore>())?;
    Some(format!(
        "typical error of predicted collectives on machines never seen {median}, nine in ten within {ninetieth}"
    ))
}

fn quoted(scores: &[ValidationScore]) -> impl Iterator<Item = &ValidationScore> {
    scores.iter().filter(|score| score.predictor == QUOTED)
}

/// The ranges of the median and of the 90th percentile over all bands: `x1.1 to 1.2`.
fn ranges(scores: &[ValidationScore]) -> Option<(String, String)> {
    let range = |of: fn(&ValidationScore) -> f64| {
        let (low, high) = quoted(scores)
            .map(of)
            .fold((f64::INFINITY, 0.0f64), |(low, high), factor| (low.min(factor), high.max(factor)));
        let [low, high] = [low, high].map(|factor| format!("{factor:.2}"));
        if low == high { format!("x{low}") } else { format!("x{low} to {high}") }
    };
    quoted(scores).next()?;
    Some((range(|score| score.median_factor), range(|score| score.ninetieth_factor)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command of the page has a placeholder, which the text names.
    #[test]
    fn the_text_says_what_the_placeholder_of_the_command_stands_for() {
        let line = r#"{"kind":"validation_score","schema":2,"commit":"c","host":"h","command":"allfold validate RUNS","predictor":"simulated","band":"b","most_nodes":10,"rows":1,"systems":1,"median_factor":1.1,"ninetieth_factor":1.3,"source":"s"}"#;
        let part = part(&Records::parse(line).unwrap()).unwrap().unwrap();
        assert!(part.section.text[0].contains("RUNS stands for the files of the published runs"));
    }

    #[test]
    fn the_quoted_error_is_the_range_over_the_bands_of_the_predictor_that_readme_quotes() {
        let score = |predictor: &str, median_factor, ninetieth_factor| ValidationScore {
            predictor: predictor.into(),
            band: "b".into(),
            most_nodes: 10,
            rows: 1,
            systems: 1,
            median_factor,
            ninetieth_factor,
            source: "s".into(),
        };
        let scores =
            [score("physical", 1.12, 1.38), score("closed-form", 3.0, 9.0), score("physical", 1.22, 2.25)];
        assert_eq!(ranges(&scores), Some(("x1.12 to 1.22".into(), "x1.38 to 2.25".into())));
        assert_eq!(ranges(&scores[1..2]), None);
    }
}
