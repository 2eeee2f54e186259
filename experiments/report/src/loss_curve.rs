//! Loss over steps, as a figure: of one run.

use crate::format;
use crate::plots::{Axis, Curves, DrawError, Figure, Origin, Point, Series};

/// The number of points drawn of a curve, each the mean of neighbouring steps.
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
