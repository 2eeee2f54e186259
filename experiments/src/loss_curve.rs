//! Loss over steps, as a figure: of one run, of several, or beside another engine's.

use crate::cli::failure::{Failure, Outcome};
use crate::plots::{Axis, Curves, DrawError, Figure, Origin, Point, Series};
use crate::report::sections::format;
use serde::Deserialize;
use std::path::Path;

/// So many points of a curve are drawn, each the mean of neighbouring steps.
const POINTS: usize = 40;

/// The course of a run: its name, and (step, loss) in order.
pub type Course = (String, Vec<(f64, f64)>);

/// The measured courses of `model` in one figure.
///
/// # Errors
/// There is no step at all.
pub fn figure(model: &str, courses: Vec<Course>) -> Result<Figure, DrawError> {
    let series = courses.into_iter().map(|(name, mut steps)| {
        steps.retain(|(_, loss)| loss.is_finite());
        let shares = POINTS.min(steps.len());
        let points = (0..shares).map(|at| {
            let share = &steps[at * steps.len() / shares..(at + 1) * steps.len() / shares];
            let mean = |of: fn(&(f64, f64)) -> f64| share.iter().map(of).sum::<f64>() / share.len() as f64;
            Point { x: mean(|step| step.0), y: mean(|step| step.1), error: 0.0 }
        });
        Series { name, origin: Origin::Measured, points: points.collect() }
    });
    let curves = Curves {
        label: format!("Loss of the {model} over steps"),
        x: Axis { label: "step", log: None, format: format::number },
        y: Axis { label: "loss", log: Some(10), format: format::number },
        series: series.collect(),
        ideal: None,
    };
    curves.draw()
}

/// What another engine wrote, a line of JSON with `step` and `loss` for each step, under the file's name.
///
/// # Errors
/// The file cannot be read, or a line is something else; which.
pub fn beside(path: &Path) -> Outcome<Course> {
    #[derive(Deserialize)]
    struct Line {
        step: f64,
        loss: f64,
    }
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let line = |(at, line): (usize, &str)| {
        let Line { step, loss } = serde_json::from_str(line)
            .map_err(|error| Failure::usage(format!("{name}, line {}: {error}", at + 1)))?;
        Ok((step, loss))
    };
    let steps = text.lines().enumerate().map(line).collect::<Outcome<Vec<_>>>()?;
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    Ok((name, steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_engine_s_course_is_read_or_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("theirs.jsonl");
        std::fs::write(&path, "{\"step\": 0, \"loss\": 2.5}\n{\"step\": 1, \"loss\": 2.0}\n").unwrap();
        let course = beside(&path).unwrap();
        assert_eq!(course, ("theirs".to_string(), vec![(0.0, 2.5), (1.0, 2.0)]));
        assert!(figure("mlp", vec![course]).unwrap().file("a run").contains("theirs"));
        std::fs::write(&path, "{\"step\": 0, \"loss\": 2.5}\n{\"step\": 1}\n").unwrap();
        let error = beside(&path).unwrap_err().to_string();
        assert!(error.contains("theirs.jsonl, line 2: missing field `loss`"), "{error}");
    }
}
