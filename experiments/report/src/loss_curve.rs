//! Loss and accuracy over the course of training, as figures.

use crate::format;
use crate::plots::{Axis, Curves, Origin, Point, Series};

/// The number of points drawn of a curve, each the mean of neighbouring steps.
const POINTS: usize = 40;

/// The losses of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct LossSeries {
    /// The name in the legend.
    pub name: String,
    /// Whether the run was measured on CPUs, measured on GPUs or simulated.
    pub origin: Origin,
    /// Samples of one step over all ranks, if they are known.
    pub samples_per_step: Option<f64>,
    /// (step, loss) in order.
    pub steps: Vec<(f64, f64)>,
}

/// The losses of runs of `model` as curves: over samples if every run has `samples_per_step`, so that runs on different
/// numbers of ranks can be compared; otherwise over steps.
pub fn curves(model: &str, courses: Vec<LossSeries>) -> Curves {
    let by_samples = courses.iter().all(|course| course.samples_per_step.is_some());
    let series = courses.into_iter().map(|LossSeries { name, origin, samples_per_step, mut steps }| {
        steps.retain(|(_, loss)| loss.is_finite());
        let each = samples_per_step.filter(|_| by_samples).unwrap_or(1.0);
        let shares = POINTS.min(steps.len());
        let points = (0..shares).map(|at| {
            let share = &steps[at * steps.len() / shares..(at + 1) * steps.len() / shares];
            let mean = |of: fn(&(f64, f64)) -> f64| share.iter().map(of).sum::<f64>() / share.len() as f64;
            let step = mean(|step| step.0);
            let x = if by_samples { (step + 1.0) * each } else { step };
            Point { x, y: mean(|step| step.1), error: 0.0 }
        });
        Series { name, origin, points: points.collect() }
    });
    Curves {
        label: format!("Loss of the {model} over {}", if by_samples { "samples seen" } else { "steps" }),
        x: Axis {
            label: if by_samples { "samples seen" } else { "step" },
            log: None,
            format: format::number,
        },
        y: Axis { label: "loss", log: Some(10), format: format::number },
        series: series.collect(),
        ideal: None,
    }
}

/// Accuracies by epoch as curves: (epoch, share of correct answers), for each set by its name.
pub fn accuracies(model: &str, origin: Origin, sets: Vec<(String, Vec<(f64, f64)>)>) -> Curves {
    let series = sets.into_iter().filter(|(_, points)| !points.is_empty()).map(|(name, points)| {
        let points = points.into_iter().map(|(x, y)| Point { x, y, error: 0.0 }).collect();
        Series { name, origin, points }
    });
    Curves {
        label: format!("Accuracy of the {model} by epoch"),
        x: Axis { label: "epochs", log: None, format: format::number },
        y: Axis { label: "accuracy", log: None, format: format::percent },
        series: series.collect(),
        ideal: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracies_are_drawn_by_set_and_a_set_without_scores_is_not() {
        let sets = vec![
            ("test set".to_string(), vec![(1.0, 0.91), (2.0, 0.97)]),
            ("training set".to_string(), Vec::new()),
        ];
        let drawn = accuracies("cnn", Origin::Cpu, sets);
        assert_eq!(drawn.series.len(), 1);
        let figure = drawn.draw().unwrap();
        assert_eq!(figure.legend[0].name, "test set");
        assert!(figure.wide.contains("test set: 97.0 % (accuracy) at 2 (epochs)"), "{}", figure.wide);
        assert!(!figure.wide.contains(">\n0.0 %\n<"), "high accuracies are told apart");
    }

    #[test]
    fn runs_of_several_sizes_are_compared_by_the_samples_that_they_have_seen() {
        let course = |samples: Option<f64>| LossSeries {
            name: "run".into(),
            origin: Origin::Cpu,
            samples_per_step: samples,
            steps: vec![(0.0, 2.0), (1.0, f64::NAN), (2.0, 1.0)],
        };
        let ends = |curves: &Curves| -> Vec<f64> {
            curves.series.iter().filter_map(|series| Some(series.points.last()?.x)).collect()
        };
        assert_eq!(ends(&curves("cnn", vec![course(Some(8.0)), course(Some(64.0))])), [24.0, 192.0]);
        let steps = curves("cnn", vec![course(Some(8.0)), course(None)]);
        assert_eq!((ends(&steps), steps.x.label), (vec![2.0, 2.0], "step"));
    }
}
